"""Learning curves of deep Gaussian processes: bound and test log likelihood, over steps and over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lapgrad_bench.common import plotting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#1f5a99", "#d1495b", "#3a7d44", "#8a5a9e")


def draw_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a figure of two panels, the curves over steps and over time.

    Args:
        rows: Of kind "table2", with arch, step, seconds, and elbo or test_ll with test_ll_standard_error.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = plotting.make_figure(9.6, 4.2)
    over_steps, over_time = figure.subplots(1, 2, sharey=True)
    draw_curves(over_steps, rows, "step")
    draw_curves(over_time, rows, "seconds")
    over_time.set_ylabel("")
    over_steps.legend(fontsize=8, loc="lower right")
    return figure


def draw_curves(axes: Axes, rows: Sequence[Mapping[str, Any]], across: Literal["step", "seconds"]) -> None:
    """Draw the bound of each architecture as a line, and its test log likelihoods as points with error bars.

    The lowest twentieth of the bounds, those of the first steps, lies below the visible range: it would
    flatten everything that follows.
    """
    placed = [row for row in rows if row[across] is not None]
    for color, arch in zip(itertools.cycle(_COLORS), dict.fromkeys(row["arch"] for row in placed)):
        own = [row for row in placed if row["arch"] == arch]
        bounds = [row for row in own if row.get("elbo") is not None]
        if bounds:
            axes.plot(
                [row[across] for row in bounds],
                [row["elbo"] for row in bounds],
                color=color,
                linewidth=1.3,
                label=f"{arch}: bound",
            )
        tests = [row for row in own if row.get("test_ll") is not None]
        if tests:
            axes.errorbar(
                [row[across] for row in tests],
                [row["test_ll"] for row in tests],
                yerr=[row.get("test_ll_standard_error") or 0.0 for row in tests],
                color=color,
                fmt="o",
                markersize=4,
                label=f"{arch}: test",
            )
    lowest = sorted(row["elbo"] for row in rows if row.get("elbo") is not None)
    if len(lowest) > 20:
        axes.set_ylim(bottom=lowest[len(lowest) // 20])
    axes.set(xlabel={"step": "steps", "seconds": "seconds"}[across], ylabel="nats per image")
    axes.grid(alpha=0.3)
