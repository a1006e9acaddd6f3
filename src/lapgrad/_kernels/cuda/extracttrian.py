"""extracttrian: pack a triangle, on CUDA: one launch for all items."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small.packing import plan_packing
from lapgrad._kernels.torch import extracttrian as _fallback


@on_its_device
def extracttrian(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    if not v.numel():
        return
    target = _items.view_batch(v.unsqueeze(-2))
    if target is None:
        _fallback.extracttrian(v, A, offset, lower)
        return
    _launch.launch(*plan_packing(target, _items.flatten_batch(A), offset, lower))
