"""The sweep: how often lapgrad is slower at random sizes, where, and maps over order and batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lapgrad_bench.bench.sweep import heatmaps, summary
from lapgrad_bench.bench.sweep.summary import Comparison
from lapgrad_bench.report import plots, quantities
from lapgrad_bench.report.cards import Card, list_failures, make_tally_cards
from lapgrad_bench.report.case_tables import make_speedup_cell
from lapgrad_bench.report.rows import format_shape
from lapgrad_bench.report.sources import Group, merge_measurements
from lapgrad_bench.report.tables import Cell, Column, Table

TITLE = "Random sizes"

_MOST_LISTED = 50
"""Timings in the table of those that lapgrad loses."""


def make_cards(group: Group) -> list[Card]:
    """Return one card per device, number of threads and peer, and one on cases that failed."""
    rows = merge_measurements(group)
    subject = f"{group.letter}: random sizes" if group.letter else "Random sizes"
    found = make_tally_cards(group, subject, rows)
    failures = list_failures(rows)
    if failures:
        content: dict[str, Any] = {"memory": None, "agreement": None, "failures": failures}
        found.append(Card(f"{subject}, failures", "memory", content))
    return found


def make_body(group: Group) -> dict[str, Any]:
    """Return the sentence, maps and tables of one group, for sections/sweep.html.j2."""
    stored = [row.as_row() for row in merge_measurements(group) if row.timing is not None]
    compared = summary.compare_libraries(stored)
    worst = summary.list_worst(compared, _MOST_LISTED)
    return {
        "share": summary.describe_share(compared),
        "maps": plots.PlotGroup(list(map(_plot_map, *_split_by_panel(compared)))) if compared else None,
        "worst": _make_worst_table(f"sweep{group.letter}-worst", worst) if worst else None,
    }


def _split_by_panel(compared: Sequence[Comparison]) -> tuple[list[str], list[list[Comparison]]]:
    """Return the titles of the maps, one per operator and phase, and the comparisons of each."""
    panels: dict[str, list[Comparison]] = {}
    for name, own in heatmaps.group_by_operator(compared).items():
        for one in own:
            panels.setdefault(f"{name} {one.phase}", []).append(one)
    return list(panels), list(panels.values())


def _plot_map(title: str, own: Sequence[Comparison]) -> plots.Plot:
    figure, axes = plots.make_panel()
    heatmaps.draw_map(axes, plots.shorten(title), own)
    # Two axis labels do not fit beside the long names of the rows; the heading explains the axes.
    axes.set_ylabel("")
    return plots.Plot(figure, f"{title}: {summary.describe_share(own)}.")


def _make_worst_table(identity: str, worst: Sequence[Comparison]) -> Table:
    columns = [Column("operator"), Column("shape"), Column("dtype"), Column("phase")]
    columns += [Column("lapgrad", is_numeric=True), Column("fastest other", is_numeric=True)]
    columns += [Column("library"), Column("faster", is_numeric=True, hint="fastest other / lapgrad")]
    rows = [
        [
            Cell(one.operator),
            Cell(format_shape(one.shape), float(one.items * one.order)),
            Cell(one.dtype),
            Cell(one.phase),
            Cell(quantities.format_seconds(one.ours), one.ours),
            Cell(quantities.format_seconds(one.theirs), one.theirs),
            Cell(one.library),
            make_speedup_cell(one.ratio),
        ]
        for one in worst
    ]
    return Table(identity, columns, rows)
