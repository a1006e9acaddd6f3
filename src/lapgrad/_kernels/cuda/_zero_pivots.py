"""The search for zeros on the diagonal of triangular matrices, on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.small.triangular import finding_zero_pivots


def find_zero_pivot(L: Tensor) -> tuple[int, int] | None:
    """Returns (item, index) of the first zero on a diagonal, None if there is none or under graph capture."""
    cell = _items.first_failure_cell(L)
    if cell is None:
        return None
    _launch.launch(*finding_zero_pivots(_items.readable(L), cell))
    return _items.first_failure(cell)


def find_zero_pivot_later(L: Tensor) -> Callable[[], tuple[int, int] | None]:
    """Starts the search; returns a function that waits for its result, not for what is launched after it."""
    question = _items.Question.about(L)
    if question is None:
        return _items.no_failure
    _launch.launch(*finding_zero_pivots(_items.readable(L), question.cell))
    return question.sent()
