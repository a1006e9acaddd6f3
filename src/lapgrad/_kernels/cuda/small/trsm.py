"""trsm of batches of triangular matrices up to order 128."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import readable, writable
from lapgrad._kernels.cuda.small.triangular import applying, finding_zero_pivots, serves
from lapgrad._kernels.torch import trsm as _fallback

__all__ = ["serves", "trsm"]


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    """As ``_fallback.trsm``, for what ``serves`` takes."""
    target = writable(X)
    if target is None:
        return _fallback.trsm(X, L, A, lower, transpose, rightside)
    triangles = readable(L)
    cell = _items.first_failure_cell(A)
    if cell is not None:
        _launch.launch(*finding_zero_pivots(triangles, cell))
    _launch.launch(*applying(target, triangles, readable(A), lower, transpose, rightside, True, cell))
    return _items.first_failure(cell)
