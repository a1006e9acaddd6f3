"""gemmt: one triangle of a product, on CUDA: block columns of products, the other triangle cleared."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _triangle
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of


@on_its_device
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    if not C.numel() or not A.numel() or not _triangle.storable(C):
        _fallback.gemmt(C, A, B, lower, transpose_a, transpose_b, alpha)
        return
    left, right = items_of(_blas.readable(A)), items_of(_blas.readable(B))
    left, right = left.mT if transpose_a else left, right.mT if transpose_b else right
    target = items_of(C)
    if lower:
        _triangle.lower_product(target, left, right, alpha, 0.0)
        _triangle.reshape(target, _triangle.CLEAR_UPPER)
        return
    _triangle.upper_product(target, left, right, alpha, 0.0)
    _triangle.reshape(target, _triangle.CLEAR_LOWER)
