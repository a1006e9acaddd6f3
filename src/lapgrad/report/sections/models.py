"""Models: time and memory of criterion and gradient over the size; do libraries agree on the value?"""

from __future__ import annotations

from collections.abc import Sequence

from lapgrad.report import findings, panels, paper, quantities
from lapgrad.report.axes import around, thinned
from lapgrad.report.cards import card, named, tally_card
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.rows import OURS, Case, Timed
from lapgrad.report.sections.operator_table import speedup_cell, time_cell
from lapgrad.report.sources import Group, merged
from lapgrad.report.tables import Cell, Column, table
from lapgrad.report.versions import versioned

TITLE = "Models"

AGREED = {"float64": 1e-6, "float32": 1e-3}
"""Relative distance up to which values of a criterion count as equal: libraries add different jitter."""


def rows_of(group: Group) -> tuple[Timed, ...]:
    """All timings, one run per case."""
    return merged(group, Timed, lambda row: row.case).rows


def cards(group: Group) -> list[Markup]:
    """One per device, number of threads and peer; one on memory and agreement."""
    rows = rows_of(group)
    prefix = f"{group.letter}: models, " if group.letter else "Models, "
    found = [
        tally_card(
            f"{prefix}{findings.where(tally.device, tally.threads)}, against {tally.peer}",
            versioned(group, tally.peer),
            tally,
        )
        for tally in findings.tallies(findings.comparisons(rows))
    ]
    sentences = [sentence for sentence in (_memory(rows), _agreement(rows), _failures(rows)) if sentence]
    if sentences:
        found.append(card(f"{prefix}memory and values", sentences))
    return found


def body(group: Group, level: int) -> Markup:
    """A part for each model; `level` is that of its headings."""
    rows = rows_of(group)
    parts = []
    for i, model in enumerate(dict.fromkeys(row.case.subject for row in rows)):
        own = [row for row in rows if row.case.subject == model]
        parts += [tag(f"h{level}", model), _figures(own), _table(f"models{group.letter}-{i}", own)]
    return joined(*parts)


def _memory(rows: Sequence[Timed]) -> Markup | None:
    by_case: dict[Case, dict[str, float]] = {}
    for row in rows:
        if row.extra_bytes is not None:
            by_case.setdefault(row.case, {})[row.library] = row.extra_bytes
    pairs = [
        (case, library, found[OURS], other)
        for case, found in by_case.items()
        if OURS in found
        for library, other in found.items()
        if library != OURS
    ]
    if not pairs:
        return None
    more = [pair for pair in pairs if pair[2] > pair[3]]
    compared = quantities.counted(len(pairs), "comparison")
    lead = tag(
        "p",
        "Peak memory: ",
        tag("strong", f"less than the other library in {len(pairs) - len(more):,} of {compared}"),
        "; more in:" if more else ".",
        class_="lead",
    )
    items = [
        f"{case}: {quantities.memory(own)}, {library} {quantities.memory(other)}"
        for case, library, own, other in more
    ]
    return joined(lead, named(items))


def _agreement(rows: Sequence[Timed]) -> Markup | None:
    found = findings.disagreements(rows)
    if not found:
        return None
    apart = [d for d in found if d.relative > AGREED.get(d.case.dtype, 1e-6)]
    total = quantities.counted(len(found), "comparison")
    if not apart:
        return tag(
            "p",
            tag("strong", f"Values agree in all {total}"),
            f", to {found[0].relative:.0e} at worst.",
            class_="lead",
        )
    items = [f"{d.case}, {d.peer}: by {d.relative:.1e}" for d in apart]
    lead = tag("p", tag("strong", f"Values differ in {len(apart):,} of {total}"), ":", class_="lead")
    return joined(lead, named(items))


def _failures(rows: Sequence[Timed]) -> Markup | None:
    failed = [row for row in rows if row.timing is None]
    if not failed:
        return None
    items = [f"{row.library}, {row.case}: {row.failure or 'no time'}" for row in failed]
    return joined(
        tag("p", tag("strong", f"No result in {quantities.counted(len(failed), 'case')}"), ":"), named(items)
    )


def _figures(rows: Sequence[Timed]) -> list[Markup]:
    """Time and memory over the size that varies; a figure for each dtype, device and other sizes."""
    swept = _swept(rows)
    if not swept:
        return []
    figures = []
    libraries = findings.libraries(rows)
    for variant in dict.fromkeys(_variant(row.case, swept) for row in rows):
        own = [row for row in rows if _variant(row.case, swept) == variant]
        case = own[0].case
        beside = _of_the_paper() if (case.subject, swept, case.dtype) == ("sparse_gp", "U", "float64") else []
        times = [_line(own, name, i, swept, "time") for i, name in enumerate(libraries)]
        memory = [_line(own, name, i, swept, "memory") for i, name in enumerate(libraries)]
        drawn = [
            _panel(title, [one for one in series if one.points], swept, text)
            for title, series, text in (
                ("time", times + beside, quantities.round_seconds),
                ("extra memory", memory, quantities.round_memory),
            )
            if any(len(one.points) > 1 for one in series[: len(libraries)])
        ]
        if drawn:
            keys = [panels.Series(name, (), i) for i, name in enumerate(libraries)]
            keys += (
                [panels.Series("the paper's Figure 2 (its machines)", (), None, joined=False)]
                if beside
                else []
            )
            caption = f"Value and gradient over {swept}: {variant}. Lower is better."
            figures.append(panels.panels(caption, keys, drawn))
    return figures


def _panel(title: str, series: Sequence[panels.Series], swept: str, text: panels.Text) -> Markup:
    across = sorted({x for one in series for x, _ in one.points})
    x = panels.Scale(swept, around(across, logarithmic=True), lambda v: f"{v:g}", thinned(across))
    heights = [y for one in series for _, y in one.points]
    y = panels.Scale("", around(heights, logarithmic=True), text)
    return panels.panel(title, series, x, y)


def _line(rows: Sequence[Timed], library: str, colour: int, swept: str, what: str) -> panels.Series:
    points = []
    for row in rows:
        value = row.extra_bytes if what == "memory" else row.timing.median if row.timing else None
        if row.library == library and value is not None and value > 0:
            points.append((dict(row.case.sizes)[swept], value))
    return panels.Series(library, sorted(points), colour)


def _of_the_paper() -> list[panels.Series]:
    return [
        panels.Series(f"paper, {name}", points, None, joined=False) for name, points in paper.FIGURE_2.items()
    ]


def _swept(rows: Sequence[Timed]) -> str:
    """The size that takes most values; of several such the first. Empty: none takes two."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, size in row.case.sizes:
            values.setdefault(name, set()).add(size)
    varying = {name: len(found) for name, found in values.items() if len(found) > 1}
    return max(varying, key=lambda name: varying[name]) if varying else ""


def _variant(case: Case, swept: str) -> str:
    """All of a case but the model and the size on the axis."""
    others = ", ".join(f"{name} = {size:,.10g}" for name, size in case.sizes if name != swept)
    parts = (case.dtype, case.variant, findings.where(case.device, case.threads), others)
    return ", ".join(part for part in parts if part)


def _table(identity: str, rows: Sequence[Timed]) -> Markup:
    libraries = findings.libraries(rows)
    others = [name for name in libraries if name != OURS]
    by_case: dict[Case, dict[str, Timed]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.library] = row
    differences = {(d.case, d.peer): d.relative for d in findings.disagreements(rows)}
    columns = [
        Column("case"),
        Column("dtype"),
        Column("where"),
        Column(OURS, figures=True),
        Column("memory", figures=True),
    ]
    for name in others:
        columns += [
            Column(name, figures=True),
            Column("faster", figures=True, hint=f"{name} / lapgrad"),
            Column("memory", figures=True, hint=f"peak of {name}"),
            Column("value differs", figures=True, hint=f"{name} and lapgrad, relative"),
        ]
    body = []
    for case, found in by_case.items():
        ours = found.get(OURS)
        extent = " ".join(part for part in (case.extent, case.variant) if part)
        cells = [Cell(extent, case.sizes[0][1] if case.sizes else None), Cell(case.dtype, style="soft")]
        cells += [
            Cell(findings.where(case.device, case.threads), style="soft"),
            time_cell(ours),
            _memory_cell(ours),
        ]
        for name in others:
            theirs = found.get(name)
            both = ours is not None and theirs is not None and ours.timing and theirs.timing
            quotient = theirs.timing.median / ours.timing.median if both else None  # type: ignore[union-attr]
            difference = differences.get((case, name))
            shown = "–" if difference is None else f"{difference:.0e}"
            cells += [
                time_cell(theirs),
                speedup_cell(quotient),
                _memory_cell(theirs),
                Cell(shown, difference, "soft"),
            ]
        body.append(cells)
    return table(
        identity, "Value and gradient: medians per call, and the peak of extra memory.", columns, body
    )


def _memory_cell(row: Timed | None) -> Cell:
    extra = row.extra_bytes if row else None
    return Cell(quantities.memory(extra), extra, "soft")
