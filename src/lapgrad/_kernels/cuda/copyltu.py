"""copyltu: mirror a triangle, on CUDA: a copy and one pass over half of it."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.torch import copyltu as _fallback


@on_its_device
def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    if not B.numel() or B.shape[:-2].numel() > _thresholds.MOST_ITEMS or not _device.is_storable(B):
        _fallback.copyltu(B, A, lower)
        return
    if B.data_ptr() != A.data_ptr() or B.stride() != A.stride():
        B.copy_(A)
    _device.reshape_triangle(B, _device.MIRROR_UP if lower else _device.MIRROR_DOWN)
