"""Every case of the operators, in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lapgrad.report import findings, quantities
from lapgrad.report.markup import Markup, tag
from lapgrad.report.rows import OURS, Case, Timed
from lapgrad.report.tables import Cell, Column, table


def every_case(identity: str, rows: Sequence[Timed]) -> Markup:
    libraries = findings.libraries(rows)
    others = [name for name in libraries if name != OURS]
    by_case: dict[Case, dict[str, Timed]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.library] = row
    place = len({(case.device, case.threads) for case in by_case}) > 1
    memory = any(row.extra_bytes is not None for row in rows)
    fraction = any(row.gemm_fraction is not None for row in rows)
    columns = [Column("operator"), Column("shape", figures=True), Column("dtype"), Column("phase")]
    columns += [Column("where")] if place else []
    columns += [
        Column(OURS, figures=True, hint="median"),
        Column("±", figures=True, hint="half the distance of the quartiles"),
    ]
    for name in others:
        columns += [
            Column(name, figures=True, hint="median"),
            Column("faster", figures=True, hint=f"{name} / lapgrad"),
        ]
    columns += [Column("Gflop/s", figures=True, hint="of lapgrad")]
    columns += (
        [Column("of gemm", figures=True, hint="of the rate of a matrix product in the same run")]
        if fraction
        else []
    )
    columns += (
        [Column("extra memory", figures=True, hint="peak of lapgrad beyond what was there before")]
        if memory
        else []
    )
    body = []
    for case, found in by_case.items():
        ours = found.get(OURS)
        timing = ours.timing if ours else None
        cells = [
            Cell(case.subject),
            _shape(case),
            Cell(case.dtype, style="soft"),
            Cell(case.phase, style="soft"),
        ]
        cells += [Cell(findings.where(case.device, case.threads))] if place else []
        cells += [
            time_cell(ours),
            Cell(quantities.percent(timing.spread), timing.spread, "soft") if timing else Cell("–"),
        ]
        for name in others:
            theirs = found.get(name)
            quotient = theirs.timing.median / timing.median if theirs and theirs.timing and timing else None
            cells += [time_cell(theirs), speedup_cell(quotient)]
        rate = ours.flops / timing.median / 1e9 if ours and ours.flops and timing else None
        cells.append(Cell(quantities.number(rate, 3), rate))
        part = ours.gemm_fraction if ours else None
        cells += [Cell(quantities.percent(part), part)] if fraction else []
        extra = ours.extra_bytes if ours else None
        cells += [Cell(quantities.memory(extra), extra)] if memory else []
        body.append(cells)
    caption = "Medians per call. Faster: how many times; within one run."
    return table(f"{identity}-cases", caption, columns, body)


def time_cell(row: Timed | None) -> Cell:
    """The median; of a library that failed the reason, on hovering."""
    if row is None:
        return Cell("–")
    if row.timing is None:
        return Cell(tag("abbr", "failed", title=row.failure or "no time was recorded"), style="bad")
    return Cell(quantities.seconds(row.timing.median), row.timing.median)


def speedup_cell(value: float | None) -> Cell:
    if value is None:
        return Cell("–")
    even = 1 + findings.EVEN
    style = "good" if value > even else "bad" if value < 1 / even else "soft"
    return Cell(quantities.ratio(value), value, style)


def _shape(case: Case) -> Cell:
    return Cell(case.extent, math.prod(case.shape))
