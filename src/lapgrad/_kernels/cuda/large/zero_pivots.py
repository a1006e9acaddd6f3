"""The search for zeros on the diagonal of triangular matrices, on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.small.triangular import plan_zero_pivot_search


def find_zero_pivot(L: Tensor) -> tuple[int, int] | None:
    """(item, index) of the first zero on the diagonal, in one read; None while a graph is captured."""
    cell = _items.get_status_cell(L)
    if cell is None:
        return None
    _launch.launch(*plan_zero_pivot_search(_items.flatten_batch(L), cell))
    return _items.read_first_failure(cell)


def find_zero_pivot_later(L: Tensor) -> Callable[[], tuple[int, int] | None]:
    """``find_zero_pivot`` as a function that waits for this check alone, not for later launches."""
    status = _items.DeferredStatus.acquire(L)
    if status is None:
        return _items.report_no_failure
    _launch.launch(*plan_zero_pivot_search(_items.flatten_batch(L), status.cell))
    return status.send()
