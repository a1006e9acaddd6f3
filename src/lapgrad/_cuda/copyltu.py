"""copyltu: mirror a triangle, on CUDA: a copy and one pass over half of it."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _triangle
from lapgrad._cuda._block import block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of


@on_its_device
def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    if not B.numel() or not _triangle.storable(B):
        _fallback.copyltu(B, A, lower)
        return
    if B.data_ptr() != A.data_ptr() or B.stride() != A.stride():
        B.copy_(A)
    _triangle.reshape(B, block_of(items_of(B)), _triangle.MIRROR_UP if lower else _triangle.MIRROR_DOWN)
