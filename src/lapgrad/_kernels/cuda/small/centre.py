"""Launches that centre observations: see ``kernels/centre.cu``."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_THREADS = 256
_BYTES = (_THREADS + 8) * 8


def plan_centring(
    mean: Tensor, centred: Tensor, unit: Tensor, X: Tensor, least: float, degrees: int
) -> Launch:
    """Return the launch for X, (items, n, d), any strides; the results are contiguous."""
    items, n, d = X.shape
    results = (mean.data_ptr(), centred.data_ptr(), unit.data_ptr())
    return (
        "centre", "centre<{T}>", X, (items,), _THREADS, _BYTES,
        X.data_ptr(), *X.stride(), *results, float(least), degrees, n, d,
    )  # fmt: skip


def plan_vjp(gX: Tensor, g_centred: Tensor, g_mean: Tensor | None, unit: Tensor) -> Launch:
    """The launch of the gradient for g_centred, (items, n, d), any strides; the others are contiguous."""
    items, n, d = g_centred.shape
    return (
        "centre", "centre_vjp<{T}>", g_centred, (items,), _THREADS, _BYTES,
        gX.data_ptr(), g_centred.data_ptr(), *g_centred.stride(), get_address(g_mean), unit.data_ptr(), n, d,
    )  # fmt: skip
