"""Table 1 of the paper: error and log likelihood of sparse Gaussian processes, beside the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad_bench.experiments.paper import TABLE1, Figure, Quality
from lapgrad_bench.report import plots, quantities
from lapgrad_bench.report.cards import Card, Item
from lapgrad_bench.report.means import Mean
from lapgrad_bench.report.rows import FoldResult
from lapgrad_bench.report.sources import Group, merge_rows
from lapgrad_bench.report.tables import NOTHING, Cell, Column, Table

TITLE = "Table 1: quality of sparse Gaussian processes"

_FIGURES = (("rmse", "RMSE"), ("tll", "log likelihood"))


@dataclass(frozen=True)
class Setting:
    """What folds share. All folds of one setting make one line of the table."""

    dataset: str
    inducing: int
    optimizer: str
    steps: int | None
    device: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.dataset}, U = {self.inducing:,}"


def _collect_settings(group: Group) -> dict[Setting, list[FoldResult]]:
    found: dict[Setting, list[FoldResult]] = {}
    rows = merge_rows(group, FoldResult, identify_row).rows
    for row in sorted(rows, key=lambda row: (row.dataset, row.inducing)):
        found.setdefault(_get_setting(row), []).append(row)
    return found


def identify_row(row: FoldResult) -> Hashable:
    """Return the key of a row: two rows with equal keys measure the same thing."""
    return _get_setting(row), row.fold, row.seed


def _get_setting(row: FoldResult) -> Setting:
    return Setting(row.dataset, row.inducing, row.optimizer, row.steps, row.device, row.dtype)


def make_cards(group: Group) -> list[Card]:
    """Return a card: how many figures are better than the paper's, as good, and worse."""
    title = f"{group.letter}: Table 1 of the paper" if group.letter else "Table 1 of the paper"
    judged = [j for setting, folds in _collect_settings(group).items() for j in _judge(setting, folds)]
    found = {
        verdict: [Item(text) for v, text in judged if v == verdict]
        for verdict in ("better", "equal", "worse")
    }
    return [Card(title, "table1", {"total": len(judged), **found})]


def _judge(setting: Setting, folds: Sequence[FoldResult]) -> list[tuple[str, str]]:
    """Return for each figure whether it is better, equal or worse than the paper's, and a sentence.

    The paper's figures are those of MXNet with as many inducing inputs; equal means within their deviation.
    """
    theirs = _find_paper(setting, "MXNet")
    if theirs is None:
        return []
    judged = []
    for field, name in _FIGURES:
        ours, wanted = Mean.from_values([getattr(fold, field) for fold in folds]), getattr(theirs, field)
        if ours is not None:
            verdict = "equal" if abs(ours.mean - wanted.mean) <= wanted.deviation else "better"
            verdict = verdict if wanted.is_reached_by(ours.mean) else "worse"
            judged.append((verdict, f"{setting}, {name}: {ours}; the paper's {_format_figure(wanted)}"))
    return judged


def make_body(group: Group) -> dict[str, Any]:
    """Return tables of means and of folds, and plots of the folds, for sections/table1.html.j2."""
    found = _collect_settings(group)
    identity = f"table1{group.letter}"
    return {
        "means": _make_table(f"{identity}-means", found),
        "plots": plots.make_group(_plot_folds(found)),
        "folds": _make_fold_table(f"{identity}-folds", found),
    }


def _make_table(identity: str, found: dict[Setting, list[FoldResult]]) -> Table:
    columns = [
        Column("data"),
        Column("U", True, "inducing inputs"),
        Column("learned by"),
        Column("folds", True),
    ]
    for _, name in _FIGURES:
        columns += [Column(heading, True) for heading in (name, "paper: MXNet", "paper: GPy")]
    columns += [Column("per fold", True, "median time of learning"), Column("per step", True, "median")]
    rows = []
    for setting, folds in found.items():
        judged = [verdict for verdict, _ in _judge(setting, folds)]
        cells = [
            Cell(setting.dataset),
            Cell(f"{setting.inducing:,}", setting.inducing),
            Cell(_describe_training(setting), style="soft"),
            Cell(str(len(folds)), len(folds)),
        ]
        for i, (field, _) in enumerate(_FIGURES):
            style = {"better": "good", "worse": "bad"}.get(judged[i], "") if len(judged) == 2 else ""
            cells.append(make_mean_cell([getattr(fold, field) for fold in folds], style))
            for method in ("MXNet", "GPy"):
                theirs = _find_paper(setting, method)
                figure = getattr(theirs, field) if theirs else None
                text, key = (_format_figure(figure), figure.mean) if figure else (NOTHING, None)
                cells.append(Cell(text, key, "soft"))
        rows.append([*cells, *make_time_cells(folds)])
    return Table(identity, columns, rows)


def make_mean_cell(values: Sequence[float | None], style: str = "") -> Cell:
    """Return the cell of a mean over folds with its deviation."""
    mean = Mean.from_values(values)
    return Cell(str(mean), mean.mean, style) if mean else Cell(NOTHING)


def make_time_cells(folds: Sequence[FoldResult]) -> list[Cell]:
    """Return two cells: the median times of a fold and of a step."""
    cells = []
    for field in ("seconds", "seconds_per_step"):
        times = [value for fold in folds if (value := getattr(fold, field)) is not None]
        middle = statistics.median(times) if times else None
        cells.append(Cell(quantities.format_seconds(middle), middle))
    return cells


def _plot_folds(found: dict[Setting, list[FoldResult]]) -> list[plots.Plot]:
    """Return plots of the RMSE and of the log likelihood of every fold over U, with the paper's means."""
    drawn = []
    for dataset in dict.fromkeys(setting.dataset for setting in found):
        for field, name in _FIGURES:
            points = [
                (float(setting.inducing), value)
                for setting, folds in found.items()
                for fold in folds
                if setting.dataset == dataset and setting.inducing > 0
                if (value := getattr(fold, field)) is not None
            ]
            theirs = [
                (float(inducing), getattr(tasks[dataset], field).mean)
                for (library, inducing), tasks in TABLE1.items()
                if library == "MXNet" and dataset in tasks
            ]
            series = [plots.Series("one fold", points, plots.get_color(0), "o")]
            series += [plots.Series("the paper's MXNet (mean)", theirs, plots.GREY, "s--")] if theirs else []
            if points:
                drawn.append(plots.plot_series(f"{dataset}: {name}", "U", series, has_log_sizes=True))
    return drawn


def _make_fold_table(identity: str, found: dict[Setting, list[FoldResult]]) -> Table:
    columns = [Column("data")]
    columns += [Column(name, True) for name in ("U", "fold", "seed", "RMSE", "log likelihood", "seconds")]
    rows = [
        [
            Cell(setting.dataset),
            Cell(f"{setting.inducing:,}", setting.inducing),
            *(Cell(NOTHING if value is None else str(value), value) for value in (fold.fold, fold.seed)),
            *(Cell(quantities.format_number(value), value) for value in (fold.rmse, fold.tll)),
            Cell(quantities.format_seconds(fold.seconds), fold.seconds),
        ]
        for setting, folds in found.items()
        for fold in folds
    ]
    return Table(identity, columns, rows)


def _describe_training(setting: Setting) -> str:
    steps = "" if setting.steps is None else quantities.format_count(setting.steps, "step")
    return ", ".join(part for part in (setting.optimizer, steps, setting.dtype, setting.device) if part)


def _find_paper(setting: Setting, library: str) -> Quality | None:
    return TABLE1.get((library, setting.inducing), {}).get(setting.dataset)


def _format_figure(figure: Figure) -> str:
    return f"{quantities.format_number(figure.mean)} ± {figure.deviation:g}"
