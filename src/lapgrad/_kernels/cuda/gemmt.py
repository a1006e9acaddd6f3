"""gemmt: one triangle of a product, on CUDA: products of blocks, the other triangle cleared."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import gemmt as _fallback


@on_its_device
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    too_many = C.shape[:-2].numel() > _thresholds.MOST_ITEMS
    if not C.numel() or not A.numel() or too_many or not _device.is_storable(C):
        _fallback.gemmt(C, A, B, lower, transpose_a, transpose_b, alpha)
        return
    left, right = _device.make_readable(A), _device.make_readable(B)
    left, right = left.mT if transpose_a else left, right.mT if transpose_b else right
    _device.multiply_triangle(C, left, right, lower, alpha, 0.0, _thresholds.PRODUCT_CUT)
    _device.reshape_triangle(C, _device.CLEAR_UPPER if lower else _device.CLEAR_LOWER)
