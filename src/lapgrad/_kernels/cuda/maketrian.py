"""maketrian: unpack a triangle, on CUDA: one launch for all items."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small.packing import plan_unpacking
from lapgrad._kernels.torch import maketrian as _fallback


@on_its_device
def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    if not v.numel():
        A.zero_()
        return
    target = _items.view_batch(A)
    if target is None:
        _fallback.maketrian(A, v, offset, lower)
        return
    _launch.launch(*plan_unpacking(target, _items.flatten_batch(v.unsqueeze(-2)), offset, lower))
