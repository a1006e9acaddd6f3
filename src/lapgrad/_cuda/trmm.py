"""trmm: triangular product, on CUDA: cuBLAS's, which reads one triangle and works in half the time of a product."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _triangle
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of

_ITEMS = 8


@on_its_device
def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    if not B.numel() or L.shape[:-2].numel() > _ITEMS or not _triangle.storable(B):
        _fallback.trmm(B, L, A, lower, transpose, rightside)
        return
    source = A if A.stride(-1) == 1 and A.stride(-2) >= A.shape[-1] else A.contiguous()
    triangles, sources, targets = items_of(_blas.readable(L)), items_of(source), items_of(B)
    for item in range(targets.shape[0]):
        M = triangles[item].mT if transpose else triangles[item]
        _blas.trmm(targets[item], M, sources[item], lower != transpose, rightside)
