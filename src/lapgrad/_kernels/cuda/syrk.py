"""syrk: product of a matrix with its transpose, on CUDA: one triangle by cuBLAS, mirrored."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import syrk as _fallback


@on_its_device
def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    if (
        not A.numel()
        or not _thresholds.serves_items_one_by_one(B.shape[:-2].numel(), B.shape[-1])
        or not _device.is_storable(B)
    ):
        _fallback.syrk(B, A, transpose)
        return
    source = _device.make_readable(A)
    _device.syrk(B, source.mT if transpose else source, lower=True)
    _device.reshape_triangle(B, _device.MIRROR_UP)


@on_its_device
def syrk_add(B: Tensor, A: Tensor) -> None:
    if not A.numel() or not _device.is_storable(B):
        _fallback.syrk_add(B, A)
        return
    source = _device.make_readable(A)
    if len(B) <= _thresholds.WHOLE_PRODUCT_UP_TO <= A.shape[-1]:
        _device.gemm(B, source, source.mT, beta=1.0)
        return
    _device.syrk(B, source, lower=True, beta=1.0)
