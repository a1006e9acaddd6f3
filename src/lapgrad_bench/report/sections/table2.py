"""Table 2 of the paper: deep Gaussian processes on MNIST, their learning curves and test log likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lapgrad_bench.experiments import plots_table2
from lapgrad_bench.experiments.paper import TABLE2
from lapgrad_bench.report import plots, quantities
from lapgrad_bench.report.cards import Card
from lapgrad_bench.report.rows import TrainingRecord
from lapgrad_bench.report.sources import Group, merge_rows
from lapgrad_bench.report.tables import NOTHING, Cell, Column, Table

TITLE = "Table 2: deep Gaussian processes on MNIST"


def _collect_curves(group: Group) -> dict[str, list[TrainingRecord]]:
    """Return the records by architecture, each in the order of the steps and from one run."""
    found: dict[str, list[TrainingRecord]] = {}
    for row in merge_rows(group, TrainingRecord, lambda row: row.arch).rows:
        found.setdefault(row.arch, []).append(row)
    return {arch: sorted(rows, key=lambda row: row.step or 0.0) for arch, rows in found.items()}


def make_cards(group: Group) -> list[Card]:
    """Return a card: the test log likelihood of each architecture beside the paper's."""
    title = f"{group.letter}: Table 2 of the paper" if group.letter else "Table 2 of the paper"
    results = []
    for arch, rows in _collect_curves(group).items():
        final, theirs = _find_final(rows), _find_paper(arch)
        is_better = None
        if final and final.test_ll is not None and theirs:
            is_better = final.test_ll >= theirs["SV-DGP"]
        test = _format_test(final) if final else "not evaluated"
        results.append({"arch": arch, "test": test, "paper": theirs, "is_better": is_better})
    return [Card(title, "table2", {"results": results})] if results else []


def make_body(group: Group) -> dict[str, Any]:
    """Return the table of architectures and the learning curves, for sections/table2.html.j2."""
    curves = _collect_curves(group)
    rows = [dataclasses.asdict(record) for records in curves.values() for record in records]
    drawn = []
    for across in ("step", "seconds"):
        if len({row[across] for row in rows if row[across] is not None}) > 1:
            figure, axes = plots.make_panel()
            plots_table2.draw_curves(axes, rows, across)
            axes.set_title({"step": "over steps", "seconds": "over time"}[across])
            axes.locator_params(axis="x", nbins=6)
            drawn.append(plots.finish_plot(figure))
    return {"table": _make_table(f"table2{group.letter}-final", curves), "curves": plots.make_group(drawn)}


def _make_table(identity: str, curves: dict[str, list[TrainingRecord]]) -> Table:
    headings = ["test log likelihood", "samples", "paper: SV-DGP", "paper: VAE-DGP"]
    headings += ["last bound", "steps", "epochs", "time"]
    rows = []
    for arch, records in curves.items():
        final, theirs, last = _find_final(records), _find_paper(arch), records[-1]
        bound = next((row.elbo for row in reversed(records) if row.elbo is not None), None)
        duration = max((row.seconds for row in records if row.seconds is not None), default=None)
        has_samples = final is not None and final.samples is not None
        rows.append(
            [
                Cell(arch),
                Cell(_format_test(final), final.test_ll) if final else Cell(NOTHING),
                Cell(f"{final.samples:,}" if final and has_samples else NOTHING),
                *(
                    Cell(quantities.format_number(theirs.get(name), 5), theirs.get(name), "soft")
                    for name in ("SV-DGP", "VAE-DGP")
                ),
                *(Cell(quantities.format_number(v, 6), v) for v in (bound, last.step, last.epoch)),
                Cell(quantities.format_seconds(duration), duration),
            ]
        )
    return Table(identity, [Column("architecture"), *(Column(name, True) for name in headings)], rows)


def _find_paper(arch: str) -> dict[str, float]:
    """Return the paper's figures by model; SV-DGP is its own."""
    return {model: figures[arch] for model, figures in TABLE2.items() if arch in figures}


def _find_final(rows: Sequence[TrainingRecord]) -> TrainingRecord | None:
    """Return the last record with a test log likelihood."""
    return next((row for row in reversed(rows) if row.test_ll is not None), None)


def _format_test(row: TrainingRecord) -> str:
    text, error = quantities.format_number(row.test_ll, 5), row.test_ll_standard_error
    return text if error is None else f"{text} ± {quantities.format_number(error, 2)}"
