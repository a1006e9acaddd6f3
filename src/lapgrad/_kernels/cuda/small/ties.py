"""The check whether a loss depends on vectors that a matrix does not determine.

A loss can do so only where values are equal, or zero. A small kernel looks for such values
(``kernels/spectral_ties.cu``): in the forward pass of a call whose gradient is recorded, where the host waits
for the device anyway, or else before the gradient. Values that are known to be distinct are not checked.
"""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lapgrad._formulas.gaps import choose_tolerance
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_THREADS = 256

#: Entries of the register after which those of released memory are removed.
_MANY_ENTRIES = 64


class _DistinctValues:
    """Which values have been found to be distinct, by their address while their memory lives.

    The formulas of an operator pass only tensors from the forward to the backward pass, so the kernels of
    both share this register.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, float]] = {}

    def add(self, values: Tensor, tol: float) -> None:
        """Note that no two of the values are equal up to tol, relative to the largest, and none is zero."""
        if len(self._known) >= _MANY_ENTRIES:
            self._known = {place: entry for place, entry in self._known.items() if not entry[0].expired()}
        self._known[values.data_ptr()] = StorageWeakRef(values.untyped_storage()), tol

    def __contains__(self, checked: tuple[Tensor, float]) -> bool:
        """Whether (values, tol) was added, or the same values with a larger tolerance."""
        values, tol = checked
        entry = self._known.get(values.data_ptr())
        return entry is not None and tol <= entry[1] and not entry[0].expired()


_distinct = _DistinctValues()


def note_distinct(values: Tensor) -> None:
    """Find out whether sorted values (*batch, k), just computed, are distinct, and remember if they are."""
    cell = _items.get_status_cell(values)
    if cell is None or not values.numel():
        return
    tol = choose_tolerance(values.shape[-1], values.dtype, None)
    _launch.launch(*plan_search(values, tol, True, cell))
    if _items.read_first_failure(cell) is None:
        _distinct.add(values, tol)


def are_distinct(values: Tensor, tol: float) -> bool:
    """Whether ``note_distinct`` has found that no values are equal up to tol, and none is zero."""
    return (values, tol) in _distinct


class TieCheck:
    """The check of one call: launched before the gradient, read after it.

    Args:
        values: (*batch, k), contiguous: sorted eigenvalues or singular values.
        tol: The gap, relative to the largest value, up to which two are equal.
        zeros: Vectors of zeros are not determined either.
        searches: Look for ties first. Else the host waits for the gradient, which is faster for few values.

    Attributes:
        cell: Where the gradient's kernels report an item; None while nothing may be read back.
    """

    def __init__(self, values: Tensor, tol: float, *, zeros: bool, searches: bool = True) -> None:
        self.cell = None if are_distinct(values, tol) else _items.get_status_cell(values)
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
    """Return the launch that looks for equal neighbours among values, and for zeros if wanted."""
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
