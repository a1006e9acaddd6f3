"""Means over folds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lapgrad_bench.report import quantities


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over folds; None with a single fold."""

    mean: float
    deviation: float | None

    @classmethod
    def from_values(cls, values: Sequence[float | None]) -> Mean | None:
        """Return mean and deviation of the values that are known; None where there are none.

        Example:
            >>> Mean.from_values([1.0, 3.0, None]), Mean.from_values([None])
            (Mean(mean=2.0, deviation=1.4142135623730951), None)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.mean(known), statistics.stdev(known) if len(known) > 1 else None)

    def __str__(self) -> str:
        mean = quantities.format_number(self.mean, 4)
        return mean if self.deviation is None else f"{mean} ± {quantities.format_number(self.deviation, 2)}"
