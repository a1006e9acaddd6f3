"""gemmt: one triangle of a product, on CUDA: products of blocks, the other triangle cleared."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _triangle
from lapgrad._cuda._block import block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of


@on_its_device
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    if not C.numel() or not A.numel() or not _triangle.storable(C):
        _fallback.gemmt(C, A, B, lower, transpose_a, transpose_b, alpha)
        return
    left, right = block_of(items_of(_blas.readable(A))), block_of(items_of(_blas.readable(B)))
    target = block_of(items_of(C))
    _triangle.triangular_product(
        _blas.on(C),
        target,
        left.mT if transpose_a else left,
        right.mT if transpose_b else right,
        lower=lower,
        alpha=alpha,
        beta=0.0,
    )
    _triangle.reshape(C, target, _triangle.CLEAR_UPPER if lower else _triangle.CLEAR_LOWER)
