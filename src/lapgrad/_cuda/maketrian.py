"""maketrian: unpack a triangle, on CUDA: one launch for all items."""

from __future__ import annotations

from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _items, _launch
from lapgrad._cuda._packing import unpacking
from lapgrad._cuda._stream import on_its_device


@on_its_device
def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    if not v.numel():
        A.zero_()
        return
    target = _items.writable(A)
    if target is None:
        _fallback.maketrian(A, v, offset, lower)
        return
    _launch.launch(*unpacking(target, _items.readable(v.unsqueeze(-2)), offset, lower))
