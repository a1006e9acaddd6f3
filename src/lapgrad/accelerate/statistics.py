"""Counts of the calls that overrides have taken and passed on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: The reason that is stored for calls that lapgrad has taken.
TAKEN = "taken"

#: The reason for calls that torch computes because of their sizes and dtype.
SMALL = "faster in torch"

#: Operator, reason, device, dtype, shape of the matrix.
Key = tuple[str, str, str, torch.dtype, tuple[int, ...]]

#: Shapes beyond this many are counted together: a program may have no two calls of one shape.
_MOST_ENTRIES = 10_000


class CallCount(NamedTuple):
    """How often one operator was called with one shape, and what became of it.

    Attributes:
        operator: torch's name of the operator.
        taken: Whether lapgrad computed it.
        reason: Why torch computed it; "taken" if it did not.
        device: "cpu" or "cuda".
        dtype: Of the matrix.
        shape: Of the matrix. Empty for calls whose shapes are counted together because there were too many.
        calls: How many.
    """

    operator: str
    taken: bool
    reason: str
    device: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    calls: int


class Statistics(tuple[CallCount, ...]):
    """One entry per operator, shape and reason, the most frequent first; printed as a table."""

    __slots__ = ()

    @property
    def taken(self) -> int:
        """How many calls lapgrad computed."""
        return sum(entry.calls for entry in self if entry.taken)

    @property
    def passed_on(self) -> int:
        """How many calls were passed on to torch."""
        return sum(entry.calls for entry in self if not entry.taken)

    def __str__(self) -> str:
        head = ("calls", "operator", "shape", "dtype", "device", "by")
        rows = [
            (
                str(entry.calls),
                entry.operator,
                " x ".join(map(str, entry.shape)) or "...",
                str(entry.dtype).removeprefix("torch."),
                entry.device,
                "lapgrad" if entry.taken else f"torch: {entry.reason}",
            )
            for entry in self
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
        return "\n".join([*lines, f"{self.taken} calls by lapgrad, {self.passed_on} by torch"])


class Counts:
    """A table of counts. Each is a list of one number (a cell) that frequent callers keep and increment."""

    def __init__(self) -> None:
        self._cells: dict[Key, list[int]] = {}
        self._gates: list[tuple[str, str, Any]] = []

    def add_gate(self, operator: str, device: str, gate: Any) -> None:
        """Include the calls that a gate counts itself: those passed on, and those taken directly."""
        self._gates.append((operator, device, gate))

    def cell(
        self, operator: str, reason: str, device: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> list[int]:
        """Where the calls of one kind are counted; for all shapes together once there are too many."""
        key = operator, reason, device, dtype, shape
        found = self._cells.get(key)
        if found is not None:
            return found
        if len(self._cells) >= _MOST_ENTRIES:
            key = operator, reason, device, dtype, ()
        return self._cells.setdefault(key, [0])

    def items(self) -> list[tuple[Key, int]]:
        """Yield what was counted since the last ``clear``, and how often."""
        found = {key: cell[0] for key, cell in self._cells.copy().items() if cell[0]}
        for operator, device, gate in self._gates:
            for reason, taken in ((SMALL, False), (TAKEN, True)):
                for item_size, shape, calls in gate.counts(taken=taken):
                    dtype = torch.float64 if item_size == torch.float64.itemsize else torch.float32
                    key = operator, reason, device, dtype, shape
                    found[key] = found.get(key, 0) + calls
        return list(found.items())

    def clear(self) -> None:
        """Count from zero again, in the same cells."""
        for cell in self._cells.copy().values():
            cell[0] = 0
        for _, _, gate in self._gates:
            gate.clear_counts()


def summarise(counts: Counts) -> Statistics:
    """Return the table as it is now."""
    return Statistics(
        CallCount(operator, reason == TAKEN, reason, device, dtype, tuple(shape), calls)
        for (operator, reason, device, dtype, shape), calls in sorted(
            counts.items(), key=lambda entry: -entry[1]
        )
    )
