"""Plots of operators: speed-ups, time over size, fraction of a matrix product."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from lapgrad.report import dots, findings, panels, quantities
from lapgrad.report.axes import Axis, around, thinned
from lapgrad.report.findings import Comparison, Tally
from lapgrad.report.markup import Markup, tag
from lapgrad.report.rows import OURS, Timed
from lapgrad.report.sources import Group
from lapgrad.report.versions import versioned

_FIRST = ("potrf", "gelqf", "syevd", "gesvd")
"""The operators of the paper's Figure 1 come first."""

_PHASES = ("forward", "backward", "step")


def ranked(group: Group, compared: Sequence[Comparison]) -> Markup:
    """All speed-ups in their order, one colour per peer."""
    peers = list(dict.fromkeys(c.peer for c in compared))
    colours = _colours([OURS, *peers])
    series = []
    for peer in peers:
        own = [_dot(c, colours[peer], hollow=False) for c in compared if c.peer == peer]
        series.append((dots.Key(f"against {versioned(group, peer)}", colours[peer]), own))
    axis = _ratio_axis(compared)
    ratios = [c.ratio for c in compared]
    least, most, middle = (quantities.ratio(f(ratios)) for f in (min, max, statistics.median))
    description = (
        f"Speed-up of lapgrad over {', '.join(peers)} in {quantities.counted(len(compared), 'case')}, "
        f"sorted: from {least} to {most}, median {middle}."
    )
    caption = (
        "Speed-up in every case, sorted; one dot is one operator, shape, dtype and phase. "
        "Below 1× (shaded) lapgrad is slower."
    )
    return dots.ranked(caption, series, axis, _tick, description)


def by_operator(group: Group, tally: Tally) -> Markup:
    """A line of dots for each operator."""
    members_of: dict[str, list[Comparison]] = {}
    for comparison in tally.comparisons:
        members_of.setdefault(comparison.case.subject, []).append(comparison)
    medians = tally.medians()
    lines = []
    for name in sorted(members_of, key=lambda name: -medians[name]):
        members = members_of[name]
        ratios = [c.ratio for c in members]
        words = (
            f"{quantities.counted(len(members), 'case')}, {quantities.ratio(min(ratios))} to "
            f"{quantities.ratio(max(ratios))}, median {quantities.ratio(medians[name])}"
        )
        marks = [_dot(c, _dtype_colour(c.case.dtype), c.case.phase != "forward") for c in members]
        lines.append(dots.Line(name, marks, quantities.ratio(medians[name]), words))
    keys = []
    for dtype in dict.fromkeys(c.case.dtype for c in tally.comparisons):
        for hollow in sorted({c.case.phase != "forward" for c in tally.comparisons if c.case.dtype == dtype}):
            phases = [p for p in _PHASES if (p != "forward") == hollow and _has(tally, dtype, p)]
            keys.append(dots.Key(f"{dtype} {', '.join(phases)}", _dtype_colour(dtype), hollow))
    place = findings.where(tally.device, tally.threads)
    caption = (
        f"Speed-up over {versioned(group, tally.peer)} by operator, {place}; sorted by the median, which "
        "stands at the right. Below 1× (shaded) lapgrad is slower."
    )
    return dots.strips(
        caption, lines, _ratio_axis(tally.comparisons), _tick, keys, reference=1.0, shaded=True
    )


def _has(tally: Tally, dtype: str, phase: str) -> bool:
    return any(c.case.dtype == dtype and c.case.phase == phase for c in tally.comparisons)


def _dtype_colour(dtype: str) -> int:
    return 0 if dtype == "float64" else 1


def _dot(comparison: Comparison, colour: int, hollow: bool) -> dots.Dot:
    ours, theirs = (quantities.seconds(t.median) for t in (comparison.ours, comparison.theirs))
    words = f"{comparison.case}: {quantities.ratio(comparison.ratio)} ({ours}, {comparison.peer} {theirs})"
    return dots.Dot(comparison.ratio, words, colour, hollow)


def _ratio_axis(compared: Iterable[Comparison]) -> Axis:
    """All ratios and 1."""
    return around([1.0, *(c.ratio for c in compared)], logarithmic=True, margin=0.03)


def _tick(value: float) -> str:
    return f"{value:g}×"


def _colours(libraries: Sequence[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(libraries)}


# Figure 1 of the paper: seconds divided by n³ over n, so that a level line is a constant rate.


def over_size(rows: Sequence[Timed]) -> list[Markup]:
    """A figure for float64; those of other dtypes and numbers of threads can be unfolded."""
    square = [row for row in rows if row.case.square and row.timing is not None]
    places = dict.fromkeys((row.case.device, row.case.threads, row.case.dtype) for row in square)
    figures = []
    for device, threads, dtype in sorted(places, key=lambda place: place[2] != "float64"):
        own = [
            row
            for row in square
            if (row.case.device, row.case.threads, row.case.dtype) == (device, threads, dtype)
        ]
        figure = _figure_1(own, f"{dtype}, {findings.where(device, threads)}")
        if figure:
            figures.append(figure)
    if len(figures) < 2:
        return figures
    titles = [f"{dtype}, {findings.where(device, threads)}" for device, threads, dtype in places]
    rest = tag("details", tag("summary", f"The same for {'; '.join(titles[1:])}"), figures[1:])
    return [figures[0], rest]


def _figure_1(rows: Sequence[Timed], place: str) -> Markup | None:
    libraries = findings.libraries(rows)
    colours = _colours(libraries)
    phases = [phase for phase in _PHASES if any(row.case.phase == phase for row in rows)]
    names = list(dict.fromkeys(row.case.subject for row in rows))
    names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    drawn = []
    for name in names:
        own = [row for row in rows if row.case.subject == name]
        sizes = sorted({row.case.square or 0 for row in own})
        if len(sizes) < 2:
            continue
        series = [_line(own, library, phase, colours[library]) for library in libraries for phase in phases]
        series = [one for one in series if one.points]
        heights = [y for one in series for _, y in one.points]
        x = panels.Scale("n", around(sizes, logarithmic=True), lambda v: f"{v:g}", thinned(sizes))
        y = panels.Scale("ps / n³", around(heights, logarithmic=True), lambda v: f"{v:g}")
        drawn.append(panels.panel(name, series, x, y))
    if not drawn:
        return None
    keys = [
        panels.Series(f"{library} {phase}", (), colours[library], dashed=phase != "forward")
        for library in libraries
        for phase in phases
    ]
    caption = (
        f"Time divided by n³ over n ({place}), single n × n matrices. Lower is faster; a level line is a "
        "constant rate."
    )
    return panels.panels(caption, keys, drawn)


def _line(rows: Iterable[Timed], library: str, phase: str, colour: int) -> panels.Series:
    points = sorted(
        (float(row.case.square), 1e12 * row.timing.median / row.case.square**3)
        for row in rows
        if row.library == library and row.case.phase == phase and row.timing and row.case.square
    )
    return panels.Series(f"{library} {phase}", points, colour, dashed=phase != "forward")


def fractions(rows: Sequence[Timed]) -> Markup | None:
    """At the largest single matrix of each operator, one line for each operator and phase."""
    known = [row for row in rows if row.gemm_fraction is not None and row.timing is not None]
    known = [row for row in known if len(row.case.shape) == 2]
    if not known:
        return None
    libraries = findings.libraries(known)
    colours = _colours(libraries)
    largest: dict[tuple[str, str], int] = {}
    for row in known:
        key = (row.case.subject, row.case.phase)
        largest[key] = max(largest.get(key, 0), max(row.case.shape))
    dtype = "float64" if any(row.case.dtype == "float64" for row in known) else known[0].case.dtype
    threads = max(row.case.threads for row in known)
    lines = []
    for (operator, phase), n in largest.items():
        own = [
            row
            for row in known
            if (row.case.subject, row.case.phase, max(row.case.shape)) == (operator, phase, n)
            and row.case.dtype == dtype
            and row.case.threads == threads
        ]
        marks = [_fraction_dot(row, colours[row.library]) for row in own]
        ours = next((row.gemm_fraction for row in own if row.library == OURS), None)
        words = ", ".join(f"{row.library} {quantities.percent(row.gemm_fraction)}" for row in own)
        if marks:
            lines.append(
                (ours or 0.0, dots.Line(f"{operator} {phase} {n}", marks, quantities.percent(ours), words))
            )
    lines.sort(key=lambda pair: -pair[0])
    axis = Axis(0.0, 1.05 * max(1.0, *(dot.value for _, line in lines for dot in line.dots)))
    caption = (
        f"Achieved flop/s as a fraction of those of a matrix product in the same run ({dtype}), at the "
        "largest size measured. The flops are those of lapgrad's algorithm, also for others."
    )
    keys = [dots.Key(library, colours[library]) for library in libraries]
    return dots.strips(
        caption, [line for _, line in lines], axis, lambda v: f"{100 * v:.0f} %", keys, reference=1.0
    )


def _fraction_dot(row: Timed, colour: int) -> dots.Dot:
    words = f"{row.library}, {row.case}: {quantities.percent(row.gemm_fraction)} of gemm"
    return dots.Dot(row.gemm_fraction or 0.0, words, colour)
