"""Decides whether lapgrad takes a call, from what was measured.

For each device, operator, dtype and kind of call ("forward": values alone; "gradient": values and gradient)
the table has a row of numbers, one for each power of two as the order of the matrices: the least number of
matrices in the batch from which lapgrad is faster, 0 where it never is.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, NamedTuple

import torch

#: Orders from 1 to this one have an entry, those above have the last entry.
LARGEST_ORDER = 2048

#: How many entries a row has: the orders up to 1, 2, 4, ..., 2048.
BUCKETS = LARGEST_ORDER.bit_length()

#: Right-hand sides up to this many columns have rows of their own, "<operator> narrow".
NARROW = 4

Row = tuple[int, ...]


class Thresholds(NamedTuple):
    """What is known about one operator and dtype on one device.

    Attributes:
        forward: Least number of matrices per order, for values alone.
        gradient: The same where a gradient is recorded.
    """

    forward: Row
    gradient: Row


#: Entries of an extended row: more than any order has bits.
_MOST_BITS = 64

NEVER = Thresholds((0,) * _MOST_BITS, (0,) * _MOST_BITS)


def load_table() -> dict[str, Any]:
    """Return the measured table as it is stored: device -> operator -> dtype -> kind -> row."""
    text = resources.files("lapgrad.accelerate").joinpath("thresholds.json").read_text()
    table: dict[str, Any] = json.loads(text)
    return table


def find_thresholds(table: dict[str, Any], device: str, operator: str) -> dict[torch.dtype, Thresholds]:
    """The thresholds of ``operator`` per dtype, those of float32 and float64; ``NEVER`` where unmeasured.

    Rows are as long as orders can have bits, so that the entry of an order n is at (n - 1).bit_length().
    """
    found = table.get(device, {}).get(operator, {})
    return {
        dtype: Thresholds(_extend(found[name]["forward"]), _extend(found[name]["gradient"]))
        if name in found
        else NEVER
        for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64"))
    }


def has_threshold(table: dict[str, Any], device: str, operator: str) -> bool:
    """Whether lapgrad takes any call of ``operator`` on ``device``."""
    rows = (table.get(device, {}).get(name, {}) for name in (operator, f"{operator} narrow"))
    return any(any(row) for dtypes in rows for kinds in dtypes.values() for row in kinds.values())


def _extend(row: list[int]) -> Row:
    """``row`` with its last entry for all larger orders."""
    return tuple(row) + (row[-1],) * (_MOST_BITS - len(row))


def describe() -> dict[str, str]:
    """Return in words, per device, operator and dtype, which calls lapgrad takes; for ``lapgrad info``."""
    table = load_table()
    return {
        f"{device} {operator} {dtype}": "; ".join(f"{kind} {describe_row(kinds[kind])}" for kind in kinds)
        for device, operators in table.items()
        if device in ("cpu", "cuda")
        for operator, dtypes in operators.items()
        for dtype, kinds in dtypes.items()
    }


def describe_row(row: list[int]) -> str:
    """Return a row in words.

    Example:
        >>> describe_row([0, 0, 50, 50, 8, 8, 1, 1, 1, 1, 1, 1])
        '3-8: 50 matrices, 9-32: 8 matrices, 33-: 1 matrix'
    """
    parts: list[str] = []
    start = 0
    while start < len(row):
        end = start
        while end + 1 < len(row) and row[end + 1] == row[start]:
            end += 1
        if row[start]:
            first = 1 if start == 0 else 2 ** (start - 1) + 1
            last = "" if end == len(row) - 1 else str(2**end)
            orders = last if last == str(first) else f"{first}-{last}"
            parts.append(f"{orders}: {row[start]} {'matrix' if row[start] == 1 else 'matrices'}")
        start = end + 1
    return ", ".join(parts) or "never"
