"""centre: centred observations in a unit of their size, on CUDA: a block per item."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import centre as _centre


def serves_centre(X: Tensor) -> bool:
    """Whether one block per item is faster than several operations: not for a few large items."""
    items, entries = X.shape[:-2].numel(), X.shape[-2] * X.shape[-1]
    return X.numel() > 0 and (entries <= _thresholds.CENTRE_SMALL or items >= _thresholds.CENTRE_MANY)


@on_its_device
def centre(mean: Tensor, centred: Tensor, unit: Tensor, X: Tensor, least: float, degrees: int) -> None:
    """mean, centred, unit := those of X, as ``linalg._centring`` says, if ``serves_centre(X)``."""
    _launch.launch(*_centre.plan_centring(mean, centred, unit, flatten_batch(X), least, degrees))


@on_its_device
def centre_vjp(gX: Tensor, g_centred: Tensor, g_mean: Tensor | None, unit: Tensor) -> None:
    """gX := g_centred / unit less its means, plus g_mean / n."""
    steps = None if g_mean is None else g_mean.contiguous()
    _launch.launch(*_centre.plan_vjp(gX, flatten_batch(g_centred), steps, unit.contiguous()))
