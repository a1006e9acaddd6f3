"""Models: time and memory of criterion and gradient over the size; do libraries agree on the value?"""

from __future__ import annotations

from collections.abc import Sequence

from lapgrad.experiments.paper import FIGURE2
from lapgrad.report import findings, panels, quantities
from lapgrad.report.axes import around, thinned
from lapgrad.report.cards import card, failures_sentence, memory_sentence, named, tally_card
from lapgrad.report.case_tables import (
    case_table,
    difference_entry,
    memory_entry,
    name_entry,
    speedup_entry,
    spread_entry,
    time_entry,
)
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.rows import OURS, Case, Timed
from lapgrad.report.sources import Group, merged
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
    sentences = [
        sentence
        for sentence in (memory_sentence(rows), _agreement(rows), failures_sentence(rows))
        if sentence
    ]
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
            f", to {quantities.number(found[0].relative, 1)} at worst.",
            class_="lead",
        )
    items = [f"{d.case}, {d.peer}: by {quantities.number(d.relative, 2)}" for d in apart]
    lead = tag("p", tag("strong", f"Values differ in {len(apart):,} of {total}"), ":", class_="lead")
    return joined(lead, named(items))


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
    return [panels.Series(f"paper, {name}", points, None, joined=False) for name, points in FIGURE2.items()]


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
    entries = [
        name_entry("case", lambda case: " ".join(filter(None, (case.extent, case.variant))), sizes=True),
        name_entry("dtype", lambda case: case.dtype),
        name_entry("where", lambda case: findings.where(case.device, case.threads)),
    ]
    for name in findings.libraries(rows):
        entries.append(time_entry(name))
        if name == OURS:
            entries += [spread_entry(), memory_entry(name)]
        else:
            entries += [speedup_entry(name), memory_entry(name), difference_entry(name, rows)]
    caption = "Value and gradient: medians per call, and the peak of extra memory."
    return case_table(identity, caption, rows, entries)
