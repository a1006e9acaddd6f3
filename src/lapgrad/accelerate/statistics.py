"""Counts of the calls that overrides have taken and passed on."""

from __future__ import annotations

from typing import NamedTuple

import torch

#: What stands in place of a reason for calls that lapgrad has taken.
TAKEN = "taken"

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
        shape: Of the matrix. Empty for the calls of shapes that there was no more room for.
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
        """Calls that lapgrad has computed."""
        return sum(entry.calls for entry in self if entry.taken)

    @property
    def passed_on(self) -> int:
        """Calls that torch has computed."""
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


class Counts(dict[Key, int]):
    """A table of counts, zero for what was not counted before."""

    def __missing__(self, key: Key) -> int:
        if len(self) >= _MOST_ENTRIES:
            self._merge_shapes()
        return 0

    def _merge_shapes(self) -> None:
        entries = dict(self)
        self.clear()
        for (operator, reason, device, dtype, _), calls in entries.items():
            self[operator, reason, device, dtype, ()] += calls


def summarise(counts: Counts) -> Statistics:
    """The table as it is now."""
    return Statistics(
        CallCount(operator, reason == TAKEN, reason, device, dtype, tuple(shape), calls)
        for (operator, reason, device, dtype, shape), calls in sorted(
            dict(counts).items(), key=lambda entry: -entry[1]
        )
    )
