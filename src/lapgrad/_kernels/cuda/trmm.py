"""trmm: triangular product, on CUDA: cuBLAS's, which does half the work of a product."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import trmm as _trmm_batch
from lapgrad._kernels.torch import trmm as _fallback


@on_its_device
def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    if _trmm_batch.serves(L, A):
        _trmm_batch.trmm(B, L, A, lower, transpose, rightside)
        return
    items, n = L.shape[:-2].numel(), L.shape[-1]
    if not B.numel() or not _thresholds.serves_items_one_by_one(items, n) or not _device.is_storable(B):
        _fallback.trmm(B, L, A, lower, transpose, rightside)
        return
    source, factor = A if _device.is_storable(A) else A.contiguous(), _device.make_readable(L)
    _device.trmm(B, factor.mT if transpose else factor, source, lower != transpose, rightside)
