"""Table 1 of the paper: error and log likelihood of sparse Gaussian processes, beside the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from lapgrad.experiments.paper import TABLE1, Figure, Quality
from lapgrad.report import panels, quantities
from lapgrad.report.axes import around
from lapgrad.report.cards import card, named
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.means import Mean
from lapgrad.report.rows import Fold
from lapgrad.report.sources import Group, merged
from lapgrad.report.tables import Cell, Column, table

TITLE = "Table 1: quality of sparse Gaussian processes"


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


def settings_of(group: Group) -> dict[Setting, list[Fold]]:
    """Folds by what they share."""
    found: dict[Setting, list[Fold]] = {}
    rows = merged(group, Fold, identity).rows
    for row in sorted(rows, key=lambda row: (row.dataset, row.inducing)):
        found.setdefault(_setting(row), []).append(row)
    return found


def identity(row: Fold) -> Hashable:
    """What two files would have measured twice."""
    return _setting(row), row.fold, row.seed


def _setting(row: Fold) -> Setting:
    return Setting(row.dataset, row.inducing, row.optimizer, row.steps, row.device, row.dtype)


def cards(group: Group) -> list[Markup]:
    """How many figures are better than the paper's, as good, and worse."""
    title = f"{group.letter}: Table 1 of the paper" if group.letter else "Table 1 of the paper"
    judged = [j for setting, folds in settings_of(group).items() for j in _judged(setting, folds)]
    if not judged:
        return [card(title, tag("p", "No figure here has one of the paper's to compare with."))]
    counts = {
        verdict: [text for v, text in judged if v == verdict] for verdict in ("better", "equal", "worse")
    }
    lead = tag(
        "p",
        tag("strong", f"Better than the paper's MXNet in {len(counts['better'])} of {len(judged)} figures"),
        f", within its deviation in {len(counts['equal'])}, ",
        tag("strong", f"worse in {len(counts['worse'])}"),
        ":" if counts["worse"] else ".",
        class_="lead",
    )
    return [card(title, lead, named(counts["worse"]))]


def _judged(setting: Setting, folds: Sequence[Fold]) -> list[tuple[str, str]]:
    """better, equal (within the paper's deviation) or worse than MXNet with as many inducing inputs."""
    theirs = _paper(setting, "MXNet")
    if theirs is None:
        return []
    judged = []
    for name, ours, wanted in (
        ("RMSE", Mean.of([f.rmse for f in folds]), theirs.rmse),
        ("log likelihood", Mean.of([f.tll for f in folds]), theirs.tll),
    ):
        if ours is not None:
            verdict = "equal" if abs(ours.mean - wanted.mean) <= wanted.deviation else "better"
            verdict = verdict if wanted.reached(ours.mean) else "worse"
            judged.append((verdict, f"{setting}, {name}: {ours}; the paper's {_printed(wanted)}"))
    return judged


def body(group: Group, level: int) -> Markup:
    """The table, and errors over the number of inducing inputs."""
    found = settings_of(group)
    identity = f"table1{group.letter}"
    return joined(
        _table(f"{identity}-means", found),
        tag(f"h{level}", "Folds"),
        _folds(found),
        _every_fold(identity, found),
    )


def _table(identity: str, found: dict[Setting, list[Fold]]) -> Markup:
    columns = [
        Column("data"),
        Column("U", figures=True, hint="inducing inputs"),
        Column("learned by"),
        Column("folds", figures=True),
        Column("RMSE", figures=True),
        Column("paper: MXNet", figures=True),
        Column("paper: GPy", figures=True),
        Column("log likelihood", figures=True),
        Column("paper: MXNet", figures=True),
        Column("paper: GPy", figures=True),
        Column("per fold", figures=True, hint="median time of learning"),
        Column("per step", figures=True, hint="median"),
    ]
    rows = []
    for setting, folds in found.items():
        judged = [verdict for verdict, _ in _judged(setting, folds)]
        cells = [
            Cell(setting.dataset),
            Cell(f"{setting.inducing:,}", setting.inducing),
            Cell(_learned(setting), style="soft"),
        ]
        cells.append(Cell(str(len(folds)), len(folds)))
        for i, name in enumerate(("rmse", "tll")):
            ours = Mean.of([getattr(fold, name) for fold in folds])
            style = {"better": "good", "worse": "bad"}.get(judged[i], "") if len(judged) == 2 else ""
            cells.append(Cell("–" if ours is None else str(ours), ours.mean if ours else None, style))
            for method in ("MXNet", "GPy"):
                theirs = _paper(setting, method)
                figure = getattr(theirs, name) if theirs else None
                cells.append(
                    Cell(_printed(figure) if figure else "–", figure.mean if figure else None, "soft")
                )
        for name in ("seconds", "seconds_per_step"):
            times = [value for fold in folds if (value := getattr(fold, name)) is not None]
            middle = statistics.median(times) if times else None
            cells.append(Cell(quantities.seconds(middle), middle))
        rows.append(cells)
    caption = (
        "Mean and standard deviation over folds, in the units of the data, beside the paper's figures with "
        "as many inducing inputs. Colour: better or worse than its MXNet by more than its deviation."
    )
    return table(identity, caption, columns, rows)


def _folds(found: dict[Setting, list[Fold]]) -> Markup | None:
    """RMSE and log likelihood of every fold over U, with the paper's means."""
    drawn = []
    for dataset in dict.fromkeys(setting.dataset for setting in found):
        own = {setting: folds for setting, folds in found.items() if setting.dataset == dataset}
        for name, title in (("rmse", "RMSE"), ("tll", "log likelihood")):
            points = [
                (float(setting.inducing), value)
                for setting, folds in own.items()
                for fold in folds
                if (value := getattr(fold, name)) is not None
            ]
            if not points:
                continue
            theirs = [
                (float(inducing), getattr(tasks[dataset], name).mean)
                for (library, inducing), tasks in TABLE1.items()
                if library == "MXNet" and dataset in tasks
            ]
            series = [panels.Series("folds", points, 0, joined=False)]
            series += [panels.Series("the paper's MXNet", theirs, None, dashed=True)] if theirs else []
            across = sorted({x for x, _ in (*points, *theirs)})
            x = panels.Scale("U", around(across, logarithmic=True, margin=0.15), lambda v: f"{v:g}", across)
            y = panels.Scale(
                "", around([v for _, v in (*points, *theirs)]), lambda v: quantities.number(v, 3)
            )
            drawn.append(panels.panel(f"{dataset}: {title}", series, x, y))
    if not drawn:
        return None
    keys = [
        panels.Series("one fold", (), 0, joined=False),
        panels.Series("the paper's MXNet (mean)", (), None, dashed=True),
    ]
    return panels.panels("Every fold. RMSE: lower is better; log likelihood: higher is better.", keys, drawn)


def _every_fold(identity: str, found: dict[Setting, list[Fold]]) -> Markup:
    columns = [Column("data")]
    columns += [
        Column(name, figures=True) for name in ("U", "fold", "seed", "RMSE", "log likelihood", "seconds")
    ]
    rows = [
        [
            Cell(setting.dataset),
            Cell(f"{setting.inducing:,}", setting.inducing),
            *(Cell("–" if value is None else str(value), value) for value in (fold.fold, fold.seed)),
            *(Cell(quantities.number(value), value) for value in (fold.rmse, fold.tll)),
            Cell(quantities.seconds(fold.seconds), fold.seconds),
        ]
        for setting, folds in found.items()
        for fold in folds
    ]
    caption = "Every fold."
    return tag(
        "details", tag("summary", "The folds as a table"), table(f"{identity}-folds", caption, columns, rows)
    )


def _learned(setting: Setting) -> str:
    steps = "" if setting.steps is None else quantities.counted(setting.steps, "step")
    return ", ".join(part for part in (setting.optimizer, steps, setting.dtype, setting.device) if part)


def _paper(setting: Setting, library: str) -> Quality | None:
    return TABLE1.get((library, setting.inducing), {}).get(setting.dataset)


def _printed(figure: Figure) -> str:
    return f"{quantities.number(figure.mean)} ± {figure.deviation:g}"
