"""trmm: triangular product, on CUDA: cuBLAS's, which reads one triangle and does half the work of a product."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _sizes, _triangle
from lapgrad._cuda._block import block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of


@on_its_device
def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    items, n = L.shape[:-2].numel(), L.shape[-1]
    if not B.numel() or not _sizes.one_by_one(items, n) or not _triangle.storable(B):
        _fallback.trmm(B, L, A, lower, transpose, rightside)
        return
    if not _triangle.storable(A):
        A = A.contiguous()
    blas = _blas.on(L)
    triangle, source, target = (block_of(items_of(X)) for X in (_blas.readable(L), A, B))
    M = triangle.mT if transpose else triangle
    for item in range(items):
        blas.trmm(target.item(item), M.item(item), source.item(item), lower != transpose, rightside)
