"""Operators: speed-ups, time over size, fraction of a matrix product, and every case in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lapgrad_bench.bench.ops import plots as op_plots
from lapgrad_bench.report import findings, plots
from lapgrad_bench.report.cards import Card, list_failures, make_tally_cards, summarise_memory
from lapgrad_bench.report.case_tables import (
    Entry,
    make_case_table,
    make_gemm_entry,
    make_memory_entry,
    make_name_entry,
    make_rate_entry,
    make_speedup_cell,
    make_speedup_entry,
    make_spread_entry,
    make_time_entry,
)
from lapgrad_bench.report.findings import Comparison, Tally
from lapgrad_bench.report.rows import OURS, Measurement
from lapgrad_bench.report.sources import Group, merge_measurements
from lapgrad_bench.report.tables import Cell, Column, Table
from lapgrad_bench.report.versions import name_with_version

TITLE = "Operators"

_FIRST = ("potrf", "gelqf", "syevd", "gesvd")
"""The operators of the paper's Figure 1, whose plots come first."""


def make_cards(group: Group) -> list[Card]:
    """Return one card per device, number of threads and peer; one on memory; one on cases that failed."""
    rows = merge_measurements(group)
    subject = f"{group.letter}: operators" if group.letter else "Operators"
    found = make_tally_cards(group, subject, rows, _compute_medians)
    content: dict[str, Any] = {"memory": summarise_memory(rows), "failures": list_failures(rows)}
    empty: dict[str, Any] = {"memory": None, "agreement": None, "failures": []}
    return found + [
        Card(f"{subject}, {name}", "memory", {**empty, name: value})
        for name, value in content.items()
        if value
    ]


def _compute_medians(tally: Tally) -> dict[str, float]:
    """Return the median speed-ups of each phase, of single matrices and of batches."""
    parts = {
        phase: tally.compute_median_of(lambda case, phase=phase: case.phase == phase)  # type: ignore[misc]
        for phase in dict.fromkeys(c.case.phase for c in tally.comparisons)
    }
    parts["single matrices"] = tally.compute_median_of(lambda case: len(case.shape) == 2)
    parts["batches"] = tally.compute_median_of(lambda case: len(case.shape) > 2)
    return {name: value for name, value in parts.items() if value is not None}


def make_body(group: Group) -> dict[str, Any]:
    """Return the plots and tables of one group, for sections/ops.html.j2."""
    rows = merge_measurements(group)
    compared = findings.compare_libraries(rows)
    cases = dict.fromkeys(row.case for row in rows)
    return {
        "cases": len(cases),
        "operators": len({case.subject for case in cases}),
        "dtypes": list(dict.fromkeys(case.dtype for case in cases)),
        "phases": list(dict.fromkeys(case.phase for case in cases)),
        "shapes": list(dict.fromkeys(case.extent for case in cases)),
        "spread": findings.compute_typical_spread(rows),
        "sorted_speedups": _plot_sorted(group, compared) if compared else None,
        "by_operator": plots.make_group(
            [
                plots.plot_speedups_by_operator(tally, _name_comparison(group, tally))
                for tally in findings.tally_comparisons(compared)
            ]
        ),
        "over_size": list(_plot_over_size(rows)),
        "fractions": _plot_fractions(rows),
        "table": _make_table(f"ops{group.letter}-cases", rows),
    }


def make_overview(groups: Sequence[Group]) -> Table | None:
    """Return the median speed-up of each operator, one column per group and peer; None for a single group."""
    if len(groups) < 2:
        return None
    columns, found = [Column("operator")], []
    for group in groups:
        for tally in findings.tally_comparisons(findings.compare_libraries(merge_measurements(group))):
            place = findings.name_place(tally.device, tally.threads)
            heading = f"{group.letter}: {place}, {tally.peer}"
            columns.append(Column(heading, is_numeric=True, hint=group.title))
            found.append(tally.compute_medians())
    names = dict.fromkeys(name for medians in found for name in medians)
    rows = [[Cell(name), *(make_speedup_cell(medians.get(name)) for medians in found)] for name in names]
    return Table("ops-overview", columns, rows) if rows else None


def _plot_sorted(group: Group, compared: Sequence[Comparison]) -> plots.PlotGroup:
    names = {peer: name_with_version(group, peer) for peer in dict.fromkeys(c.peer for c in compared)}
    return plots.plot_sorted_speedups(compared, names)


def _name_comparison(group: Group, tally: Tally) -> str:
    return f"over {tally.peer}, {findings.name_place(tally.device, tally.threads)}"


def _plot_over_size(rows: Sequence[Measurement]) -> Iterator[Mapping[str, Any]]:
    """Yield the plots of each device, dtype and number of threads, named in words; float64 first."""
    stored = [row.as_row() for row in rows if row.timing is not None]
    places = op_plots.group_panels(stored)
    for device, dtype, threads in sorted(places, key=lambda place: place[1] != "float64"):
        panels = places[device, dtype, threads]
        found = []
        for name in sorted(panels, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
            figure, axes = plots.make_panel()
            op_plots.draw_operator(axes, plots.shorten(name), panels[name])
            found.append(plots.finish_plot(figure))
        keys = op_plots.make_legend_keys([row for own in panels.values() for row in own])
        place = f"{dtype}, {findings.name_place(device, threads)}"
        yield {"place": place, "group": plots.PlotGroup(found, plots.make_legend(keys))}


def _plot_fractions(rows: Sequence[Measurement]) -> Mapping[str, Any] | None:
    """Return the dtype, and a plot of the fractions at the largest single matrix of each operator."""
    known = [row for row in rows if row.gemm_fraction is not None and row.timing and len(row.case.shape) == 2]
    if not known:
        return None
    dtype = "float64" if any(row.case.dtype == "float64" for row in known) else known[0].case.dtype
    threads = max(row.case.threads for row in known)
    known = [row for row in known if (row.case.dtype, row.case.threads) == (dtype, threads)]
    largest: dict[tuple[str, str], int] = {}
    for row in known:
        key = (row.case.subject, row.case.phase)
        largest[key] = max(largest.get(key, 0), max(row.case.shape))
    fractions: dict[str, dict[str, float]] = {}
    order = findings.list_libraries(known)
    for row in sorted(known, key=lambda row: order.index(row.library)):
        subject, phase, n = row.case.subject, row.case.phase, max(row.case.shape)
        if n == largest[subject, phase]:
            fractions.setdefault(f"{subject} {phase} {n}", {})[row.library] = row.gemm_fraction or 0.0
    ordered = sorted(fractions.items(), key=lambda pair: -pair[1].get(OURS, 0.0))
    return {"dtype": dtype, "group": plots.make_group([plots.plot_fractions(dict(ordered), "of torch.mm")])}


def _make_table(identity: str, rows: Sequence[Measurement]) -> Table:
    entries: list[Entry] = [
        make_name_entry("operator", lambda case: case.subject),
        make_name_entry("shape", lambda case: case.extent, has_sizes=True),
        make_name_entry("dtype", lambda case: case.dtype),
        make_name_entry("phase", lambda case: case.phase),
    ]
    if len({(row.case.device, row.case.threads) for row in rows}) > 1:
        entries.append(make_name_entry("where", lambda case: findings.name_place(case.device, case.threads)))
    with_memory = {row.library for row in rows if row.extra_bytes is not None}
    for name in findings.list_libraries(rows):
        entries.append(make_time_entry(name))
        entries.append(make_spread_entry() if name == OURS else make_speedup_entry(name))
    entries.append(make_rate_entry())
    if any(row.gemm_fraction is not None for row in rows):
        entries.append(make_gemm_entry())
    entries += [make_memory_entry(name) for name in findings.list_libraries(rows) if name in with_memory]
    return make_case_table(identity, rows, entries)
