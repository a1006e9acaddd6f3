"""sumlogdiag: sum of the logarithms of a diagonal, on CUDA: one launch for all items."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small.sumlogdiag import plan_sum, plan_vjp
from lapgrad._kernels.torch import sumlogdiag as _fallback


@on_its_device
def sumlogdiag(s: Tensor, A: Tensor) -> None:
    if not A.numel() or not s.is_contiguous():
        _fallback.sumlogdiag(s, A)
        return
    _launch.launch(*plan_sum(s, _items.flatten_batch(A)))


@on_its_device
def sumlogdiag_vjp(gA: Tensor, A: Tensor, gs: Tensor) -> None:
    if not A.numel() or not gA.is_contiguous():
        _fallback.sumlogdiag_vjp(gA, A, gs)
        return
    _launch.launch(*plan_vjp(gA, _items.flatten_batch(A), gs.reshape(-1)))
