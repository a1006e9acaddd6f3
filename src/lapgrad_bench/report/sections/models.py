"""Models: time and memory of criterion and gradient over the size, and whether libraries agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lapgrad_bench.bench.models import plots as model_plots
from lapgrad_bench.common import plotting
from lapgrad_bench.experiments.paper import FIGURE2
from lapgrad_bench.report import findings, plots, quantities
from lapgrad_bench.report.cards import Card, Item, list_failures, make_tally_cards, summarise_memory
from lapgrad_bench.report.case_tables import make_speedup_cell, make_time_cell
from lapgrad_bench.report.rows import Case, Measurement
from lapgrad_bench.report.sources import Group, merge_measurements
from lapgrad_bench.report.tables import Cell, Column, Table

TITLE = "Models"

AGREED = {"float64": 1e-6, "float32": 1e-3}
"""Relative distance up to which values of a criterion count as equal: libraries add different jitter."""


def make_cards(group: Group) -> list[Card]:
    """Return one card per device, number of threads and peer, and one on memory and agreement."""
    rows = merge_measurements(group)
    subject = f"{group.letter}: models" if group.letter else "Models"
    found = make_tally_cards(group, subject, rows)
    content = {
        "memory": summarise_memory(rows),
        "agreement": _summarise_agreement(rows),
        "failures": list_failures(rows),
    }
    return found + (
        [Card(f"{subject}, memory and values", "memory", content)] if any(content.values()) else []
    )


def _summarise_agreement(rows: Sequence[Measurement]) -> dict[str, Any] | None:
    """Return how many values were compared, the largest difference, and those that are too far apart."""
    found = findings.compare_values(rows)
    if not found:
        return None
    apart = [
        Item(f"{d.case}, {d.peer}: by {quantities.format_number(d.relative, 2)}")
        for d in found
        if d.relative > AGREED.get(d.case.dtype, 1e-6)
    ]
    return {"total": len(found), "worst": found[0].relative, "apart": apart}


def make_body(group: Group) -> dict[str, Any]:
    """Return plots and a table for each model, for sections/models.html.j2."""
    rows = merge_measurements(group)
    models = []
    for i, model in enumerate(dict.fromkeys(row.case.subject for row in rows)):
        own = [row for row in rows if row.case.subject == model]
        size = _choose_size(own)
        models.append(
            {
                "name": model,
                "size": size,
                "figures": list(_plot_over_size(own, size)) if size else [],
                "table": _make_table(f"models{group.letter}-{i}", own),
            }
        )
    return {"models": models}


def _plot_over_size(rows: Sequence[Measurement], size: str) -> Iterator[Mapping[str, Any]]:
    """Yield time and memory over one size, for each dtype, device and set of other sizes, named in words."""
    rows = [row for row in rows if dict(row.case.sizes).get(size, 0) > 0]
    for variant in dict.fromkeys(_name_variant(row.case, size) for row in rows):
        timed = [row for row in rows if _name_variant(row.case, size) == variant and row.timing]
        with_memory = [row for row in timed if row.extra_bytes]
        found = []
        if _count_sizes(timed) > 1:
            found.append(_plot_quantity(timed, size, "seconds"))
        if _count_sizes(with_memory) > 1:
            found.append(_plot_quantity(with_memory, size, "megabytes"))
        group = plots.make_group(found)
        if group:
            yield {"variant": variant, "group": group, "has_paper": _is_figure_2(timed[0].case, size)}


def _count_sizes(rows: Sequence[Measurement]) -> int:
    return len({row.case.sizes for row in rows})


def _plot_quantity(
    rows: Sequence[Measurement], size: str, quantity: Literal["seconds", "megabytes"]
) -> plots.Plot:
    """Return a plot of time or memory; of sparse Gaussian processes with those of the paper's Figure 2."""
    figure, axes = plots.make_panel()
    model_plots.draw_over_size(axes, [row.as_row() for row in rows], size, quantity)
    case = rows[0].case
    if quantity == "seconds" and _is_figure_2(case, size):
        for points in FIGURE2.values():
            label = "the paper's Figure 2"
            axes.plot(*zip(*points, strict=True), "x", color=plots.GREY, ms=5, label=label)
        sizes = {x for points in FIGURE2.values() for x, _ in points}
        plotting.label_sizes(axes.xaxis, sizes | {dict(row.case.sizes)[size] for row in rows})
    if quantity == "seconds":
        plotting.label_round_values(axes.yaxis, quantities.format_tick_seconds)
    else:
        plotting.label_round_values(axes.yaxis, lambda value: quantities.format_tick_memory(1e6 * value))
    axes.set_title({"seconds": "time", "megabytes": "extra memory"}[quantity])
    plot = plots.finish_plot(figure)
    axes.set_ylabel("")  # The ticks have units.
    return plot


def _is_figure_2(case: Case, size: str) -> bool:
    """Return whether the paper's Figure 2 shows this model over this size."""
    return (case.subject, size, case.dtype) == ("sparse_gp", "U", "float64")


def _choose_size(rows: Sequence[Measurement]) -> str:
    """Return the size that takes most values, of several such the first; empty where none takes two."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, size in row.case.sizes:
            values.setdefault(name, set()).add(size)
    varying = {name: len(found) for name, found in values.items() if len(found) > 1}
    return max(varying, key=lambda name: varying[name]) if varying else ""


def _name_variant(case: Case, size: str) -> str:
    """Return all of a case but the model and the size on the axis, in words."""
    others = ", ".join(f"{name} = {value:,.10g}" for name, value in case.sizes if name != size)
    parts = (case.dtype, case.variant, findings.name_place(case.device, case.threads), others)
    return ", ".join(part for part in parts if part)


def _make_table(identity: str, rows: Sequence[Measurement]) -> Table:
    """Return a table of one line per case and library: a column per library would need too much width."""
    differences = {(d.case, d.peer): d.relative for d in findings.compare_values(rows)}
    speedups = {(c.case, c.peer): c.ratio for c in findings.compare_libraries(rows)}
    columns = [
        Column("case"),
        Column("dtype"),
        Column("where"),
        Column("library"),
        Column("time", True, "median"),
    ]
    columns += [
        Column("±", True, "half the distance of the quartiles"),
        Column("lapgrad is faster", True, "ratio of the times"),
        Column("extra memory", True, "peak beyond what was there before"),
        Column("value differs", True, "from lapgrad's, relative"),
    ]
    order = findings.list_libraries(rows)
    cases = list(dict.fromkeys(row.case for row in rows))
    lines = []
    for row in sorted(rows, key=lambda row: (cases.index(row.case), order.index(row.library))):
        case, key = row.case, (row.case, row.library)
        spread = row.timing.spread if row.timing else None
        lines.append(
            [
                Cell(" ".join(filter(None, (case.extent, case.variant))), case.count_elements()),
                Cell(case.dtype),
                Cell(findings.name_place(case.device, case.threads)),
                Cell(row.library),
                make_time_cell(row),
                Cell(quantities.format_percent(spread), spread, "soft"),
                make_speedup_cell(speedups.get(key)),
                Cell(quantities.format_memory(row.extra_bytes), row.extra_bytes),
                Cell(quantities.format_number(differences.get(key), 1), differences.get(key), "soft"),
            ]
        )
    return Table(identity, columns, lines)
