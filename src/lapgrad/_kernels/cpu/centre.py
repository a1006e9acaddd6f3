"""centre: observations less their means, in a unit of their size, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over
from lapgrad._kernels.native import core


def serves_centre(X: Tensor) -> bool:
    """Whether there are observations; without, nothing is computed."""
    return X.numel() > 0


def centre(mean: Tensor, centred: Tensor, unit: Tensor, X: Tensor, least: float, degrees: int) -> None:
    """mean, centred, unit := those of X, as ``linalg._centring`` says."""
    X, given = hand_over(X, False)
    addresses = mean.data_ptr(), centred.data_ptr(), unit.data_ptr()
    core.centre(X.element_size(), given, *addresses, count_items(X), *X.shape[-2:], least, degrees)


def centre_vjp(gX: Tensor, g_centred: Tensor, g_mean: Tensor | None, unit: Tensor) -> None:
    """gX := g_centred / unit less its means, plus g_mean / n."""
    G, given = hand_over(g_centred, False)
    unit = unit.contiguous()
    g_mean = None if g_mean is None else g_mean.contiguous()
    addresses = 0 if g_mean is None else g_mean.data_ptr(), unit.data_ptr(), gX.data_ptr()
    core.centre_vjp(G.element_size(), given, *addresses, count_items(G), *G.shape[-2:])
