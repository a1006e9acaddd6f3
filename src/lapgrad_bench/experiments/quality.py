"""Means and deviations of Table 1 over folds, compared with the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad_bench import datasets
from lapgrad_bench.common.text_tables import Table
from lapgrad_bench.experiments.paper import TABLE1, Figure, Quality

Row = dict[str, Any]

_NAVAL = ("naval1", "naval2")
_ALIKE = 3.0
"""RMSEs that differ by a larger factor belong to different targets."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over folds."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return mean and standard deviation of values; the deviation of a single value is NaN.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0])
            Spread(mean=2.0, deviation=1.0, count=3)
        """
        deviation = statistics.stdev(values) if len(values) > 1 else math.nan
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class FoldGroup:
    """All folds of a task with one number of inducing inputs."""

    dataset: str
    inducing: int
    rmse: Spread
    tll: Spread
    seconds_per_step: float

    @property
    def target(self) -> str:
        """The column that was predicted."""
        return datasets.TASKS[self.dataset][1]


def group_folds(rows: Sequence[Row]) -> Iterator[FoldGroup]:
    """Return the folds in the rows by number of inducing inputs and task."""
    cases = sorted({(row["inducing"], list(datasets.TASKS).index(row["dataset"])) for row in rows})
    for inducing, index in cases:
        dataset = list(datasets.TASKS)[index]
        own = [row for row in rows if (row["dataset"], row["inducing"]) == (dataset, inducing)]
        rmse, tll, seconds = ([row[name] for row in own] for name in ("rmse", "tll", "seconds_per_step"))
        yield FoldGroup(dataset, inducing, Spread.of(rmse), Spread.of(tll), statistics.median(seconds))


def make_table(rows: Sequence[Row]) -> Table:
    """Return a table of RMSE and TLL per case, beside the paper's with as many inducing inputs."""
    headings = ["data", "U", "folds", "", "lapgrad", "MXNet (paper)", "GPy (paper)", "wanted", "", "ms/step"]
    lines = []
    for case in group_folds(rows):
        ours = {"RMSE": case.rmse, "TLL": case.tll}
        for name, spread in ours.items():
            mxnet, gpy = (_format_figure(library, case, name) for library in ("MXNet", "GPy"))
            first = name == "RMSE"
            lines.append(
                [
                    f"{case.dataset} ({case.target})" if first else "",
                    str(case.inducing) if first else "",
                    str(spread.count) if first else "",
                    name,
                    _format_spread(spread.mean, spread.deviation),
                    _format_spread(mxnet.mean, mxnet.deviation) if mxnet else "-",
                    _format_spread(gpy.mean, gpy.deviation) if gpy else "-",
                    f"{mxnet.sense} {mxnet.worst:.4g}" if mxnet else "-",
                    ("pass" if mxnet.is_reached_by(spread.mean) else "MISS") if mxnet else "",
                    f"{1e3 * case.seconds_per_step:.3g}" if first else "",
                ]
            )
    return headings, lines


def list_bars(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures to be reached: the paper's mean, or worse by at most its standard deviation."""
    found = []
    for case in group_folds(rows):
        for name, spread in (("RMSE", case.rmse), ("TLL", case.tll)):
            figure = _format_figure("MXNet", case, name)
            if figure is not None:
                found.append(
                    {
                        "what": f"{case.dataset}, U = {case.inducing}, {name}, mean of {spread.count} folds",
                        "wanted": figure.worst,
                        "sense": figure.sense,
                        "figure": spread.mean,
                        "unit": "",
                        "passed": figure.is_reached_by(spread.mean),
                    }
                )
    return found


def list_remarks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences on which target of *naval* is which column of the paper."""
    cases = list(group_folds(rows))
    for inducing in sorted({case.inducing for case in cases}):
        own = {case.dataset: case for case in cases if case.inducing == inducing}
        paper = TABLE1.get(("MXNet", inducing))
        if paper is None or not own.keys() >= set(_NAVAL):
            continue
        first, second = (own[name] for name in _NAVAL)
        straight, crossed = _measure_distance(paper, first, second), _measure_distance(paper, second, first)
        fitting = (first, second) if straight <= crossed else (second, first)
        yield (
            f"naval, U = {inducing}: the paper does not say which target is which. With naval1 = "
            f"{first.target}, naval2 = {second.target} RMSE is "
            f"{_compute_factors(paper, first, second)} the paper's; the other way round "
            f"{_compute_factors(paper, second, first)}. What fits better: naval1 = "
            f"{fitting[0].target}, naval2 = {fitting[1].target}."
        )
        for name, case, ratio in zip(_NAVAL, fitting, _compute_ratios(paper, *fitting), strict=True):
            if not 1.0 / _ALIKE < ratio < _ALIKE:
                figures = f"{paper[name].rmse.mean:g}: {case.target} has {case.rmse.mean:.2g}"
                yield f"Neither explains the paper's RMSE of {name}, {figures}."


def _compute_ratios(paper: dict[str, Quality], *cases: FoldGroup) -> list[float]:
    return [case.rmse.mean / paper[name].rmse.mean for name, case in zip(_NAVAL, cases, strict=True)]


def _measure_distance(paper: dict[str, Quality], *cases: FoldGroup) -> float:
    return sum(math.log(ratio) ** 2 for ratio in _compute_ratios(paper, *cases))


def _compute_factors(paper: dict[str, Quality], *cases: FoldGroup) -> str:
    return " and ".join(f"{ratio:.2g} times" for ratio in _compute_ratios(paper, *cases))


def _format_figure(library: str, case: FoldGroup, name: str) -> Figure | None:
    known = TABLE1.get((library, case.inducing), {}).get(case.dataset)
    if known is None:
        return None
    return known.rmse if name == "RMSE" else known.tll


def _format_spread(mean: float, deviation: float) -> str:
    return f"{mean:.4g}" if math.isnan(deviation) else f"{mean:.4g} ± {deviation:.2g}"
