"""The check whether a loss depends on vectors that a matrix does not determine.

A loss can do so only where values are equal, or zero. A first small kernel looks for such values
(``kernels/spectral_ties.cu``), and the host waits for that one, while the device goes on with the gradient.
Only if there are some does the host wait for the gradient's own report.
"""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_THREADS = 256


class TieCheck:
    """The check of one call: made before the gradient is launched, read after.

    Args:
        values: (*batch, k), contiguous: sorted eigenvalues or singular values.
        tol: The gap, relative to the largest value, up to which two are equal.
        zeros: Vectors of zeros are not determined either.
        searches: Look for ties first. Else the host waits for the gradient, which is faster for few values.

    Attributes:
        cell: Where the gradient's kernels report an item; None while nothing may be read back.
    """

    def __init__(self, values: Tensor, tol: float, *, zeros: bool, searches: bool = True) -> None:
        self.cell = _items.get_status_cell(values)
        searches = searches and self.cell is not None
        self._ties = _items.DeferredStatus.acquire(values) if searches else None
        if self._ties is not None:
            _launch.launch(*plan_search(values, tol, zeros, self._ties.cell))
            self._ties.send()

    def read(self) -> tuple[int, int] | None:
        """(item, 1) of the first item on which the loss has no derivative, else None."""
        if self._ties is not None and self._ties.receive() is None:
            return None
        return _items.read_first_failure(self.cell)


def plan_search(values: Tensor, tol: float, zeros: bool, cell: Tensor | None) -> Launch:
    """The launch that looks for equal neighbours among values, and for zeros if wanted."""
    return (
        "spectral_ties",
        "find_ties<{T}>",
        values,
        (-(-values.numel() // _THREADS),),
        _THREADS,
        0,
        values.data_ptr(),
        float(tol),
        int(zeros),
        get_address(cell),
        values.numel(),
        values.shape[-1],
    )
