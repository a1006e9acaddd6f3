"""extracttrian: pack a triangle, on CUDA: one launch for all items."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _items, _launch
from lapgrad._cuda._packing import packing
from lapgrad._cuda._stream import on_its_device


@on_its_device
def extracttrian(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    if not v.numel():
        return
    target = _items.writable(v.unsqueeze(-2))
    if target is None:
        _fallback.extracttrian(v, A, offset, lower)
        return
    _launch.launch(*packing(target, _items.readable(A), offset, lower))
