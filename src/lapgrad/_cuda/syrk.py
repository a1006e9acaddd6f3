"""syrk: product of a matrix with its transpose, on CUDA: one triangle by cuBLAS, mirrored."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _triangle
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of

_ITEMS = 8


@on_its_device
def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    if not A.numel() or B.shape[:-2].numel() > _ITEMS or not _triangle.storable(B):
        _fallback.syrk(B, A, transpose)
        return
    sources, targets = items_of(_blas.readable(A)), items_of(B)
    for item in range(targets.shape[0]):
        _blas.syrk(targets[item], sources[item].mT if transpose else sources[item])
    _triangle.reshape(targets, _triangle.MIRROR_UP)
