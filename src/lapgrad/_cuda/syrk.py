"""syrk: product of a matrix with its transpose, on CUDA: one triangle by cuBLAS, mirrored."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _sizes, _triangle
from lapgrad._cuda._block import block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of


@on_its_device
def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    items = B.shape[:-2].numel()
    if not A.numel() or not _sizes.one_by_one(items, B.shape[-1]) or not _triangle.storable(B):
        _fallback.syrk(B, A, transpose)
        return
    blas, source, target = _blas.on(A), block_of(items_of(_blas.readable(A))), block_of(items_of(B))
    if transpose:
        source = source.mT
    for item in range(items):
        blas.syrk(target.item(item), source.item(item))
    _triangle.reshape(B, target, _triangle.MIRROR_UP)
