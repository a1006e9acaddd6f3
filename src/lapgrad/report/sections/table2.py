"""Table 2 of the paper: deep Gaussian processes on MNIST, their learning curves and test log likelihood."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lapgrad.experiments.paper import TABLE2
from lapgrad.report import panels, quantities
from lapgrad.report.axes import around
from lapgrad.report.cards import card
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.rows import Learned
from lapgrad.report.sources import Group, merged
from lapgrad.report.tables import Cell, Column, table

TITLE = "Table 2: deep Gaussian processes on MNIST"

_MARKED = 40
"""Curves of more points than this have no marks."""


def curves_of(group: Group) -> dict[str, list[Learned]]:
    """Rows by architecture, those of one run together, in the order of learning."""
    found: dict[str, list[Learned]] = {}
    for row in merged(group, Learned, lambda row: row.arch).rows:
        found.setdefault(row.arch, []).append(row)
    return {arch: sorted(rows, key=lambda row: row.step or 0.0) for arch, rows in found.items()}


def cards(group: Group) -> list[Markup]:
    """The test log likelihood of each architecture beside the paper's."""
    title = f"{group.letter}: Table 2 of the paper" if group.letter else "Table 2 of the paper"
    sentences = []
    for arch, rows in curves_of(group).items():
        final = _final(rows)
        theirs = _paper(arch)
        words = ", ".join(f"{model} of the paper {value:g}" for model, value in theirs.items())
        shown = "not evaluated" if final is None else _with_error(final)
        better = (
            final is not None and final.test_ll is not None and theirs and final.test_ll >= theirs["SV-DGP"]
        )
        verdict = (
            ""
            if final is None or not theirs
            else " Better than the paper's."
            if better
            else " Below the paper's."
        )
        sentences.append(
            tag(
                "p",
                tag("strong", f"Architecture {arch}: test log likelihood {shown}"),
                f" ({words})." if words else ".",
                verdict,
            )
        )
    return [card(title, sentences)] if sentences else []


def body(group: Group, level: int) -> Markup:
    """The table, and the bound over steps and over time."""
    curves = curves_of(group)
    return joined(
        _table(f"table2{group.letter}-tests", curves), tag(f"h{level}", "Learning curves"), _curves(curves)
    )


def _table(identity: str, curves: dict[str, list[Learned]]) -> Markup:
    columns = [Column("architecture")]
    columns += [
        Column(name, figures=True)
        for name in ("test log likelihood", "samples", "paper: SV-DGP", "paper: VAE-DGP")
    ]
    columns += [Column(name, figures=True) for name in ("last bound", "steps", "epochs", "time")]
    rows = []
    for arch, learned in curves.items():
        final, theirs = _final(learned), _paper(arch)
        bound = next((row.elbo for row in reversed(learned) if row.elbo is not None), None)
        last = learned[-1]
        duration = max((row.seconds for row in learned if row.seconds is not None), default=None)
        cells = [Cell(arch), Cell(_with_error(final) if final else "–", final.test_ll if final else None)]
        cells.append(Cell("–" if final is None or final.samples is None else f"{final.samples:,}"))
        cells += [
            Cell(quantities.number(theirs.get(name), 5), theirs.get(name), "soft")
            for name in ("SV-DGP", "VAE-DGP")
        ]
        cells += [Cell(quantities.number(value, 6), value) for value in (bound, last.step, last.epoch)]
        cells.append(Cell(quantities.seconds(duration), duration))
        rows.append(cells)
    caption = "Log likelihood of test points with its standard error, and the last bound per point."
    return table(identity, caption, columns, rows)


def _curves(curves: dict[str, list[Learned]]) -> Markup | None:
    across: tuple[tuple[str, Callable[[Learned], float | None], panels.Text], ...] = (
        ("steps", lambda row: row.step, lambda v: f"{v:,.6g}"),
        ("time", lambda row: row.seconds, quantities.round_seconds),
    )
    drawn = []
    for title, place, text in across:
        series = [one for i, arch in enumerate(curves) for one in _series(arch, curves[arch], place, i)]
        points = [point for one in series for point in one.points]
        if len({x for x, _ in points}) > 1:
            horizontal = panels.Scale(title, around([x for x, _ in points]), text)
            vertical = panels.Scale("per point", around([y for _, y in points]), lambda v: f"{v:g}")
            drawn.append(panels.panel(f"over {title}", series, horizontal, vertical))
    if not drawn:
        return None
    keys = [
        key
        for i, arch in enumerate(curves)
        for key in (
            panels.Series(f"{arch}: bound", (), i, marked=False),
            panels.Series(f"{arch}: test", (), i, dashed=True),
        )
    ]
    caption = (
        "The bound that is learned by, and the log likelihood of test points; higher is better. "
        "The lowest twentieth of a bound, its first steps, is left out."
    )
    return panels.panels(caption, keys, drawn)


def _series(
    arch: str, rows: Sequence[Learned], place: Callable[[Learned], float | None], colour: int
) -> list[panels.Series]:
    bound = [(x, row.elbo) for row in rows if row.elbo is not None and (x := place(row)) is not None]
    bound = [point for point in bound if point[1] >= _floor([y for _, y in bound])]
    tested = [row for row in rows if row.test_ll is not None and place(row) is not None]
    points = [(place(row) or 0.0, row.test_ll or 0.0) for row in tested]
    found = [
        panels.Series(f"{arch}, bound", bound, colour, marked=len(bound) <= _MARKED),
        panels.Series(f"{arch}, test", points, colour, dashed=True, errors=[_ends(row) for row in tested]),
    ]
    return [one for one in found if one.points]


def _floor(values: Sequence[float]) -> float:
    """A twentieth of the values lie below it: those of the first steps would flatten all that follows.

    Example:
        >>> _floor([-1000.0, *range(20)])
        0
    """
    return sorted(values)[len(values) // 20]


def _paper(arch: str) -> dict[str, float]:
    """By model; SV-DGP is the paper's own."""
    return {model: figures[arch] for model, figures in TABLE2.items() if arch in figures}


def _ends(row: Learned) -> tuple[float, float] | None:
    if row.test_ll is None or row.standard_error is None:
        return None
    return row.test_ll - row.standard_error, row.test_ll + row.standard_error


def _final(rows: Sequence[Learned]) -> Learned | None:
    """The last row with a test log likelihood."""
    return next((row for row in reversed(rows) if row.test_ll is not None), None)


def _with_error(row: Learned) -> str:
    shown = quantities.number(row.test_ll, 5)
    return shown if row.standard_error is None else f"{shown} ± {quantities.number(row.standard_error, 2)}"
