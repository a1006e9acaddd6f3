"""gemmt: one triangle of a product, on CUDA: products of blocks, the other triangle cleared."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _sizes
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import gemmt as _fallback


@on_its_device
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    if not C.numel() or not A.numel() or not _device.storable(C):
        _fallback.gemmt(C, A, B, lower, transpose_a, transpose_b, alpha)
        return
    left, right = _device.readable(A), _device.readable(B)
    left, right = left.mT if transpose_a else left, right.mT if transpose_b else right
    _device.triangular_product(C, left, right, lower, alpha, 0.0, _sizes.PRODUCT_CUT)
    _device.reshape(C, _device.CLEAR_UPPER if lower else _device.CLEAR_LOWER)
