"""Compares lapgrad with the fastest other library in each case of a sweep, and sums the comparisons up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lapgrad_bench.bench.ops.tables import format_shape
from lapgrad_bench.common.results import Row
from lapgrad_bench.common.text_tables import Table, format_milliseconds

SLOWER = 0.95
"""Below this ratio lapgrad counts as slower: times vary by a few percent from run to run."""


@dataclass(frozen=True)
class Comparison:
    """Times of one phase of a case.

    Attributes:
        operator, shape, dtype, phase: the case; the shape with its batch.
        ours, theirs: seconds of lapgrad and of the fastest other library.
        library: the fastest other library.
    """

    operator: str
    shape: tuple[int, ...]
    dtype: str
    phase: str
    ours: float
    theirs: float
    library: str

    @property
    def ratio(self) -> float:
        """How many times faster lapgrad is."""
        return self.theirs / self.ours

    @property
    def is_slower(self) -> bool:
        """Whether lapgrad is slower by more than times vary."""
        return self.ratio < SLOWER

    @property
    def order(self) -> int:
        """n of the n × m matrices."""
        return self.shape[-2]

    @property
    def items(self) -> int:
        """Number of matrices."""
        return math.prod(self.shape[:-2])


def compare_libraries(rows: Iterable[Row]) -> list[Comparison]:
    """Return one comparison per case and phase that lapgrad and another library have timed."""
    by_case: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        if row.get("median_s"):
            key = row["operator"], tuple(row["shape"]), row["dtype"], row["threads"], row["phase"]
            by_case.setdefault(key, {})[row["library"]] = row
    found = []
    for libraries in by_case.values():
        ours = libraries.pop("lapgrad", None)
        if ours is None or not libraries:
            continue
        best = min(libraries.values(), key=lambda row: float(row["median_s"]))
        names = ours["operator"], tuple(ours["shape"]), ours["dtype"], ours["phase"]
        found.append(Comparison(*names, ours["median_s"], best["median_s"], best["library"]))
    return found


def describe_share(compared: Sequence[Comparison]) -> str:
    """Return in a sentence how many comparisons lapgrad loses, and the median.

    Example:
        >>> describe_share([Comparison("potrf", (4, 4), "float64", "forward", 2.0, 1.0, "torch")])
        '1 of 1 timings (100.0 %) below 0.95, 1 below 0.7; worst 0.50, median 0.50'
    """
    if not compared:
        return "nothing was compared"
    ratios = [one.ratio for one in compared]
    slower = sum(one.is_slower for one in compared)
    much = sum(ratio < 0.7 for ratio in ratios)
    return (
        f"{slower:,} of {len(ratios):,} timings ({100 * slower / len(ratios):.1f} %) below {SLOWER:g}, "
        f"{much:,} below 0.7; worst {min(ratios):.2f}, median {statistics.median(ratios):.2f}"
    )


def make_operator_table(compared: Sequence[Comparison]) -> Table:
    """Return a table of one line per operator: timings, share that is slower, worst and median ratio."""
    by_name: dict[str, list[Comparison]] = {}
    for one in compared:
        by_name.setdefault(one.operator, []).append(one)
    lines = []
    for name, own in sorted(by_name.items(), key=lambda pair: min(one.ratio for one in pair[1])):
        slower = sum(one.is_slower for one in own)
        worst, median = min(one.ratio for one in own), statistics.median(one.ratio for one in own)
        share = f"{100 * slower / len(own):.1f} %"
        lines.append([name, str(len(own)), str(slower), share, f"{worst:.2f}", f"{median:.2f}"])
    return ["operator", "timings", "slower", "share", "worst", "median"], lines


def list_worst(compared: Iterable[Comparison], most: int = 20) -> list[Comparison]:
    """Return the comparisons that lapgrad loses, the worst first."""
    return sorted((one for one in compared if one.is_slower), key=lambda one: one.ratio)[:most]


def make_worst_table(worst: Sequence[Comparison]) -> Table:
    """Return a table of one line per comparison, with the times of both libraries."""
    headings = ["operator", "shape", "dtype", "phase", "lapgrad ms", "best other ms", "ratio"]
    lines = [
        [
            one.operator,
            format_shape(one.shape),
            one.dtype,
            one.phase,
            format_milliseconds(one.ours),
            f"{format_milliseconds(one.theirs)} {one.library}",
            f"{one.ratio:.2f}",
        ]
        for one in worst
    ]
    return headings, lines
