"""Deep Gaussian process regression beside the sparse one, on the same splits of the data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from lapgrad_bench.report import plots
from lapgrad_bench.report.cards import Card, Item
from lapgrad_bench.report.means import Mean
from lapgrad_bench.report.rows import FoldResult
from lapgrad_bench.report.sections.table1 import make_mean_cell, make_time_cells
from lapgrad_bench.report.sources import Group, merge_rows
from lapgrad_bench.report.tables import Cell, Column, Table

TITLE = "Deep Gaussian process regression"

_FIGURES = (("rmse", "RMSE", 1), ("tll", "log likelihood", -1))
"""Field, name, and the sign with which less is better."""


def identify_row(row: FoldResult) -> Hashable:
    """Return the key of a row: two rows with equal keys measure the same thing."""
    return row.dataset, row.fold, row.seed, row.model, row.device


def _collect_rows(group: Group) -> tuple[FoldResult, ...]:
    return merge_rows(group, FoldResult, identify_row).rows


def make_cards(group: Group) -> list[Card]:
    """Return a card: in how many figures the deep model is at least as good, on the folds of both."""
    title = f"{group.letter}: {TITLE.lower()}" if group.letter else TITLE
    good, worse = 0, []
    for dataset, pairs in _pair_folds(group).items():
        for field, name, sign in _FIGURES:
            sparse, deep = (Mean.from_values([getattr(pair[i], field) for pair in pairs]) for i in (0, 1))
            if sparse is None or deep is None:
                continue
            if sign * (deep.mean - sparse.mean) <= 0:
                good += 1
            else:
                worse.append(Item(f"{dataset}, {name}: {deep}, sparse {sparse} ({len(pairs)} folds)"))
    return [Card(title, "deep_regression", {"total": good + len(worse), "good": good, "worse": worse})]


def _pair_folds(group: Group) -> dict[str, list[tuple[FoldResult, FoldResult]]]:
    """Return the results of the sparse and the deep model on the same fold, by data set."""
    found: dict[Hashable, dict[str, FoldResult]] = {}
    for row in _collect_rows(group):
        found.setdefault((row.dataset, row.fold, row.seed), {})[row.model] = row
    pairs: dict[str, list[tuple[FoldResult, FoldResult]]] = {}
    for models in found.values():
        if models.keys() >= {"sparse", "deep"}:
            pairs.setdefault(models["sparse"].dataset, []).append((models["sparse"], models["deep"]))
    return pairs


def make_body(group: Group) -> dict[str, Any]:
    """Return the table of means, and plots of every fold, for sections/deep_gp_regression.html.j2."""
    rows = _collect_rows(group)
    return {"means": _make_table(f"deep{group.letter}-means", rows), "plots": _plot_folds(rows)}


def _make_table(identity: str, rows: Sequence[FoldResult]) -> Table:
    columns = [Column("data"), Column("model"), Column("U", True, "inducing inputs, of each layer")]
    headings = ("folds", "RMSE", "log likelihood", "per fold", "per step")
    columns += [Column(name, is_numeric=True) for name in headings]
    lines = []
    for dataset, model in dict.fromkeys((row.dataset, row.model) for row in rows):
        own = [row for row in rows if (row.dataset, row.model) == (dataset, model)]
        cells = [Cell(dataset), Cell(model), Cell(f"{own[0].inducing:,}", own[0].inducing)]
        cells.append(Cell(str(len(own)), len(own)))
        cells += [make_mean_cell([getattr(row, field) for row in own]) for field, _, _ in _FIGURES]
        lines.append([*cells, *make_time_cells(own)])
    return Table(identity, columns, lines)


def _plot_folds(rows: Sequence[FoldResult]) -> plots.PlotGroup | None:
    models = list(dict.fromkeys(row.model for row in rows))
    drawn = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        for field, name, _ in _FIGURES:
            series = [
                plots.Series(model, points, plots.get_color(i))
                for i, model in enumerate(models)
                if (points := _list_points(rows, dataset, model, field))
            ]
            if series:
                drawn.append(plots.plot_series(f"{dataset}: {name}", "fold", series))
    return plots.make_group(drawn)


def _list_points(
    rows: Sequence[FoldResult], dataset: str, model: str, field: str
) -> list[tuple[float, float]]:
    return sorted(
        (float(row.fold + 1), value)
        for row in rows
        if (row.dataset, row.model) == (dataset, model)
        and row.fold is not None
        and (value := getattr(row, field)) is not None
    )
