"""Learning curves of deep Gaussian processes: the bound over steps and over time, and the test beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLOURS = ("#1f5a99", "#d1495b", "#3a7d44", "#8a5a9e")


def curves(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A matplotlib figure of rows of kind "table2": a line per architecture, and points where it was tested.

    Args:
        rows: With arch, step, seconds, and elbo or test_ll with test_ll_standard_error.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, across, name in zip(panels, ("step", "seconds"), ("steps", "seconds"), strict=True):
        for colour, arch in zip(_COLOURS, dict.fromkeys(row["arch"] for row in rows), strict=False):
            own = [row for row in rows if row["arch"] == arch]
            learned = [row for row in own if row.get("elbo") is not None]
            axes.plot(
                [row[across] for row in learned],
                [row["elbo"] for row in learned],
                color=colour,
                linewidth=1.3,
                label=f"{arch}: bound",
            )
            tested = [row for row in own if row.get("test_ll") is not None]
            axes.errorbar(
                [row[across] for row in tested],
                [row["test_ll"] for row in tested],
                yerr=[row.get("test_ll_standard_error") or 0.0 for row in tested],
                color=colour,
                fmt="o",
                markersize=4,
                label=f"{arch}: test",
            )
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    lowest = sorted(row["elbo"] for row in rows if row.get("elbo") is not None)
    if len(lowest) > 20:
        panels[0].set_ylim(bottom=lowest[len(lowest) // 20])  # the first steps would flatten the rest
    panels[0].set_ylabel("nats per image")
    panels[0].legend(fontsize=8, loc="lower right")
    return figure
