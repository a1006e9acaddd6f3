"""Minibatches of rows that several processes hold: each takes the rows of a minibatch that it has.

All processes draw the same order of all rows, and the same random numbers, so that a step is that of one
process with all rows and the same minibatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad.distributed.group import Group


@dataclasses.dataclass(frozen=True)
class DataShare:
    """The rows of all data that one process holds.

    Attributes:
        group: All processes.
        begin: How many rows the processes before this one hold.
        count: How many this one holds.
        total: How many all of them hold.
    """

    group: Group
    begin: int
    count: int
    total: int

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of some rows, numbered over all processes, are here, (b,), and their numbers here."""
        here = (rows >= self.begin) & (rows < self.begin + self.count)
        return here, rows[here] - self.begin

    def gather(self, data: Tensor, rows: Tensor) -> Tensor:
        """Return rows (b, d) of the data of all processes; ``data`` (n, d) are the rows of this process."""
        if self.group.size == 1:
            return data[rows]
        here, own = self.select(rows)
        found = data.new_zeros(len(rows), *data.shape[1:])
        found[here] = data[own]
        self.group.sum_tensors([found])
        return found


def share_rows(group: Group | None, check: Callable[[], Tensor]) -> tuple[Tensor, DataShare]:
    """Return the rows that ``check`` returns, and which of all rows they are. All processes call it.

    If it raises an error on one process, all of them raise.
    """
    group = group or Group()
    counts = torch.zeros(group.size, dtype=torch.float64)
    with group.expect_sum(len(counts)) as pending:
        rows = check()
        counts[group.rank] = len(rows)
        pending.start([counts])
        pending.wait()
    share = DataShare(group, int(counts[: group.rank].sum()), len(rows), int(counts.sum()))
    return rows, share


@dataclasses.dataclass(frozen=True)
class BatchPart:
    """The part of a minibatch that one process has.

    Attributes:
        weight: The weight of each row: rows of all data over rows of the minibatch, on all processes.
        is_first: Whether this process adds the terms of the loss that do not depend on rows.
    """

    weight: float
    is_first: bool
