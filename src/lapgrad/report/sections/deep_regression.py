"""Deep Gaussian process regression beside the sparse one, on the same splits of the data."""

from __future__ import annotations

import statistics
from collections.abc import Hashable

from lapgrad.report import panels, quantities
from lapgrad.report.axes import around
from lapgrad.report.cards import card, named
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.means import Mean
from lapgrad.report.rows import Fold
from lapgrad.report.sources import Group, merged
from lapgrad.report.tables import Cell, Column, table

TITLE = "Deep Gaussian process regression"

_FIGURES = (("rmse", "RMSE", 1), ("tll", "log likelihood", -1))
"""Name, title, and the sign with which less is better."""


def identity(row: Fold) -> Hashable:
    """What two files would have measured twice."""
    return row.dataset, row.fold, row.seed, row.model, row.device


def rows_of(group: Group) -> tuple[Fold, ...]:
    """All folds, one run for each."""
    return merged(group, Fold, identity).rows


def cards(group: Group) -> list[Markup]:
    """In how many figures the deep model is at least as good, over the folds that both have."""
    title = f"{group.letter}: {TITLE.lower()}" if group.letter else TITLE
    good, worse = 0, []
    for dataset, pairs in _pairs(group).items():
        for name, words, sign in _FIGURES:
            sparse, deep = (Mean.of([getattr(pair[i], name) for pair in pairs]) for i in (0, 1))
            if sparse is None or deep is None:
                continue
            if sign * (deep.mean - sparse.mean) <= 0:
                good += 1
            else:
                worse.append(f"{dataset}, {words}: {deep}, sparse {sparse} ({len(pairs)} folds)")
    total = good + len(worse)
    if not total:
        return [card(title, tag("p", "No fold was learned by both models."))]
    lead = tag(
        "p",
        tag(
            "strong",
            f"At least as good as the sparse model in {good} of {quantities.counted(total, 'figure')}",
        ),
        "; worse in:" if worse else ".",
        class_="lead",
    )
    return [card(title, lead, named(worse))]


def _pairs(group: Group) -> dict[str, list[tuple[Fold, Fold]]]:
    """By data set: sparse and deep of the same fold."""
    found: dict[Hashable, dict[str, Fold]] = {}
    for row in rows_of(group):
        found.setdefault((row.dataset, row.fold, row.seed), {})[row.model] = row
    pairs: dict[str, list[tuple[Fold, Fold]]] = {}
    for models in found.values():
        if models.keys() >= {"sparse", "deep"}:
            pairs.setdefault(models["sparse"].dataset, []).append((models["sparse"], models["deep"]))
    return pairs


def body(group: Group, level: int) -> Markup:
    """Means over folds, and every fold."""
    rows = rows_of(group)
    columns = [
        Column("data"),
        Column("model"),
        Column("U", figures=True, hint="inducing inputs, of each layer"),
    ]
    columns += [
        Column(name, figures=True) for name in ("folds", "RMSE", "log likelihood", "per fold", "per step")
    ]
    lines = []
    for dataset, model in dict.fromkeys((row.dataset, row.model) for row in rows):
        own = [row for row in rows if (row.dataset, row.model) == (dataset, model)]
        cells = [Cell(dataset), Cell(model), Cell(f"{own[0].inducing:,}", own[0].inducing)]
        cells.append(Cell(str(len(own)), len(own)))
        for name, _, _ in _FIGURES:
            mean = Mean.of([getattr(row, name) for row in own])
            cells.append(Cell("–" if mean is None else str(mean), mean.mean if mean else None))
        for name in ("seconds", "seconds_per_step"):
            times = [value for row in own if (value := getattr(row, name)) is not None]
            middle = statistics.median(times) if times else None
            cells.append(Cell(quantities.seconds(middle), middle))
        lines.append(cells)
    caption = "Mean and standard deviation over folds, in the units of the data; times are medians."
    means = table(f"deep{group.letter}-means", caption, columns, lines)
    return joined(means, tag(f"h{level}", "Fold by fold") if rows else None, _folds(rows))


def _folds(rows: tuple[Fold, ...]) -> Markup | None:
    models = list(dict.fromkeys(row.model for row in rows))
    drawn = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        for name, title, _ in _FIGURES:
            series = [_line(rows, dataset, model, name, i) for i, model in enumerate(models)]
            series = [one for one in series if one.points]
            if series:
                across = sorted({x for one in series for x, _ in one.points})
                x = panels.Scale("fold", around(across), lambda v: f"{v:g}", across)
                heights = [y for one in series for _, y in one.points]
                y = panels.Scale("", around(heights), lambda v: quantities.number(v, 3))
                drawn.append(panels.panel(f"{dataset}: {title}", series, x, y))
    if not drawn:
        return None
    keys = [panels.Series(model, (), i) for i, model in enumerate(models)]
    return panels.panels("RMSE: lower is better; log likelihood: higher is better.", keys, drawn)


def _line(rows: tuple[Fold, ...], dataset: str, model: str, name: str, colour: int) -> panels.Series:
    points = [
        (float(row.fold + 1), value)
        for row in rows
        if (row.dataset, row.model) == (dataset, model)
        and row.fold is not None
        and (value := getattr(row, name)) is not None
    ]
    return panels.Series(model, sorted(points), colour)
