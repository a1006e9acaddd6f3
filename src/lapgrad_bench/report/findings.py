"""Comparisons of lapgrad with other libraries, counted and summarised."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lapgrad_bench.report.rows import OURS, Case, Measurement, Timing

EVEN = 0.05
"""Times that differ by less than this part count as equal: repeated runs on one machine differ as much."""

EVEN_TEXT = f"{100 * EVEN:g} %"

Verdict = Literal["faster", "even", "slower"]


@dataclass(frozen=True)
class Comparison:
    """lapgrad and one other library on one case, measured in one run."""

    case: Case
    peer: str
    ours: Timing
    theirs: Timing

    @property
    def ratio(self) -> float:
        """How many times faster lapgrad is; below 1: slower."""
        return self.theirs.median / self.ours.median

    @property
    def verdict(self) -> Verdict:
        """Whether lapgrad is faster, slower, or within `EVEN`."""
        if self.ratio > 1 + EVEN:
            return "faster"
        return "slower" if self.ratio < 1 / (1 + EVEN) else "even"

    @property
    def is_doubtful(self) -> bool:
        """Whether one counts as faster although the ranges between the quartiles overlap."""
        return self.verdict != "even" and self.ours.overlaps(self.theirs)


@dataclass(frozen=True)
class Tally:
    """All comparisons with one peer on one device with one number of threads.

    Example:
        >>> fast, slow = Timing(1.0, 0.9, 1.1, 5), Timing(2.0, 1.9, 2.2, 5)
        >>> case = Case("potrf", (("", 64.0), ("", 64.0)), "float64", "cpu", 2, "forward")
        >>> tally = Tally("torch", "cpu", 2, (Comparison(case, "torch", fast, slow),))
        >>> tally.count("faster"), tally.median
        (1, 2.0)
    """

    peer: str
    device: str
    threads: int
    comparisons: tuple[Comparison, ...]

    def select(self, verdict: Verdict) -> list[Comparison]:
        """Return the comparisons of one verdict, the slowest first."""
        return sorted((c for c in self.comparisons if c.verdict == verdict), key=lambda c: c.ratio)

    def count(self, verdict: Verdict) -> int:
        """Return the number of comparisons of one verdict."""
        return len(self.select(verdict))

    @property
    def median(self) -> float:
        """The median speed-up."""
        return statistics.median(c.ratio for c in self.comparisons)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest speed-up."""
        ratios = [c.ratio for c in self.comparisons]
        return min(ratios), max(ratios)

    def compute_medians(self) -> dict[str, float]:
        """Return the median speed-up of each operator or model."""
        ratios: dict[str, list[float]] = {}
        for comparison in self.comparisons:
            ratios.setdefault(comparison.case.subject, []).append(comparison.ratio)
        return {name: statistics.median(found) for name, found in ratios.items()}

    def compute_median_of(self, wanted: Callable[[Case], bool]) -> float | None:
        """Return the median speed-up of the cases that are wanted; None where there are none."""
        ratios = [c.ratio for c in self.comparisons if wanted(c.case)]
        return statistics.median(ratios) if ratios else None

    def count_doubtful(self) -> int:
        """Return the number of differences that the spread of the samples could explain."""
        return sum(c.is_doubtful for c in self.comparisons)


def name_place(device: str, threads: int) -> str:
    """Return a device and its number of threads in words.

    Example:
        >>> name_place("cpu", 2), name_place("cuda", 8)
        ('CPU, 2 threads', 'CUDA')
    """
    if device != "cpu":
        return device.upper()
    return f"CPU, {threads} thread" + ("" if threads == 1 else "s")


def compare_libraries(rows: Iterable[Measurement]) -> list[Comparison]:
    """Return the comparisons of lapgrad with every other library, on the cases that both have a time of."""
    by_case: dict[Case, dict[str, Timing]] = {}
    for row in rows:
        if row.timing is not None:
            by_case.setdefault(row.case, {})[row.library] = row.timing
    return [
        Comparison(case, library, timings[OURS], timing)
        for case, timings in by_case.items()
        if OURS in timings
        for library, timing in timings.items()
        if library != OURS
    ]


def tally_comparisons(found: Iterable[Comparison]) -> list[Tally]:
    """Return the comparisons grouped by device, threads and peer, in the order in which they came."""
    grouped: dict[tuple[str, int, str], list[Comparison]] = {}
    for comparison in found:
        case = comparison.case
        grouped.setdefault((case.device, case.threads, comparison.peer), []).append(comparison)
    return [
        Tally(peer, device, threads, tuple(members)) for (device, threads, peer), members in grouped.items()
    ]


@dataclass(frozen=True)
class ValueDifference:
    """The value of a peer beside lapgrad's; `relative` is their distance over the larger of the two."""

    case: Case
    peer: str
    relative: float


def compare_values(rows: Iterable[Measurement]) -> list[ValueDifference]:
    """Return how far the values of all peers are from lapgrad's, the largest difference first."""
    by_case: dict[Case, dict[str, float]] = {}
    for row in rows:
        if row.value is not None:
            by_case.setdefault(row.case, {})[row.library] = row.value
    found = [
        ValueDifference(
            case, library, abs(value - values[OURS]) / (max(abs(value), abs(values[OURS])) or 1.0)
        )
        for case, values in by_case.items()
        if OURS in values
        for library, value in values.items()
        if library != OURS
    ]
    return sorted(found, key=lambda d: -d.relative)


@dataclass(frozen=True)
class MemoryComparison:
    """Peak memory of lapgrad and of a peer on one case, in bytes."""

    case: Case
    peer: str
    ours: float
    theirs: float


def compare_memory(rows: Iterable[Measurement]) -> list[MemoryComparison]:
    """Return the memory of lapgrad and of each peer, for the cases where both are known."""
    by_case: dict[Case, dict[str, float]] = {}
    for row in rows:
        if row.extra_bytes is not None:
            by_case.setdefault(row.case, {})[row.library] = row.extra_bytes
    return [
        MemoryComparison(case, library, found[OURS], other)
        for case, found in by_case.items()
        if OURS in found
        for library, other in found.items()
        if library != OURS
    ]


def compute_typical_spread(rows: Sequence[Measurement]) -> float | None:
    """Return the median over all rows of half the distance of the quartiles, relative to the median time."""
    spreads = [row.timing.spread for row in rows if row.timing is not None]
    return statistics.median(spreads) if spreads else None


def list_libraries(rows: Iterable[Measurement]) -> list[str]:
    """Return the names of the libraries: lapgrad, torch, then the others in the order in which they came."""
    names = list(dict.fromkeys(row.library for row in rows))
    first = [name for name in (OURS, "torch") if name in names]
    return first + [name for name in names if name not in first]
