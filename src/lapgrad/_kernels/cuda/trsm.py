"""trsm: triangular solve, on CUDA, and the inverse of a triangle."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import triangular_solve as _solve
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import trsm as _fallback


@on_its_device
def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    return _solve.solve(X, L, A, lower, transpose, rightside, checked=True)


@on_its_device
def invert_triangle(W: Tensor, L: Tensor) -> None:
    n = len(L)
    if n < _thresholds.LARGE or not _device.is_storable(W):
        _fallback.invert_triangle(W, L)
        return
    W.zero_().diagonal().fill_(1.0)
    _device.solve(W, _device.make_readable(L), "l", _thresholds.INVERSE_BLOCK)
