"""Sums of the statistics of a sparse Gaussian process over the processes of a group.

Each process gathers the statistics of its own rows. Their sum over all processes takes U^2 / 2 + U k
numbers, however many rows there are. The sum starts when a process has read all of its rows, and is waited
for when it is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad.distributed.group import PendingSum
from lapgrad.fused._sgp.evaluation import explain_sums_failure, explain_value_failure
from lapgrad.fused._sgp.statistics import OtherRows, Statistics
from lapgrad.ops.extracttrian import extracttrian
from lapgrad.ops.maketrian import maketrian

#: How many numbers the statistics have besides W and b: the sums of squares and of variances, the number of
#: rows, and two of the last K_c, the sum of its squared entries and its number of columns.
_NUMBERS = 5


def count_numbers(inducing: int, outputs: int) -> int:
    """Return how many numbers the statistics have."""
    return inducing * (inducing + 1) // 2 + inducing * outputs + _NUMBERS


class StatisticsSum:
    """A sum of statistics over the ranks of a group that has been started.

    Args:
        operator: The name in messages.
        pending: The sum that ``Group.expect_sum`` announced.
        own: The statistics of the rows of this rank.
        count: How many rows these are.
        is_alone: Whether there is only one rank: nothing is copied.

    Raises:
        NonFiniteError: A number of this rank is NaN or infinite.
    """

    def __init__(
        self, operator: str, pending: PendingSum, own: Statistics, count: int, is_alone: bool
    ) -> None:
        self._pending, self._own = pending, own
        self._parts: list[Tensor] = []
        if not is_alone:
            norm, columns = own.measure_columns()
            of_rows = [own.squares.sum(), own.variances, norm.square()]
            numbers = torch.stack([*of_rows, norm.new_full((), count), norm.new_full((), columns)])
            self._parts = [extracttrian(own.W), own.b, numbers]
            # After the sum over all ranks one could not tell whose NaN it was.
            if not self._parts[0].isfinite().all():
                raise explain_sums_failure(operator, -1)
            if not all(part.isfinite().all() for part in self._parts[1:]):
                raise explain_value_failure(operator)
            pending.start(self._parts)

    def finish(self) -> Statistics:
        """Return the statistics of all rows, with the last chunk and the workspace of this rank."""
        if not self._parts:
            return self._own
        self._pending.wait()
        triangle, b, numbers = self._parts
        total, columns = (int(number) for number in numbers[3:].tolist())
        return self._own._replace(
            W=maketrian(triangle),
            b=b,
            squares=numbers[:1],
            variances=numbers[1],
            others=OtherRows(total, numbers[2].sqrt(), columns),
        )
