"""Tables of one line per case, with what each library made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from lapgrad.report import findings, quantities
from lapgrad.report.markup import Markup, tag
from lapgrad.report.rows import OURS, Case, Timed
from lapgrad.report.tables import Cell, Column, table

Found = dict[str, Timed]
"""Rows of one case, by library."""

Entry = tuple[Column, Callable[[Case, Found], Cell]]
"""A column, and what stands in it."""

_NOTHING = Cell("–")


def case_table(identity: str, caption: str, rows: Iterable[Timed], entries: Sequence[Entry]) -> Markup:
    """One line per case, in the order of the rows."""
    by_case: dict[Case, Found] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.library] = row
    body = [[make(case, found) for _, make in entries] for case, found in by_case.items()]
    return table(identity, caption, [column for column, _ in entries], body)


def name_entry(heading: str, text: Callable[[Case], str], *, sizes: bool = False) -> Entry:
    """Something that names the case. Its sizes are sorted by their product: the number of elements."""

    def make(case: Case, _: Found) -> Cell:
        return Cell(text(case), math.prod(size for _, size in case.sizes) if sizes else None)

    return Column(heading), make


def time_entry(library: str) -> Entry:
    """The median; of a library that failed the reason, on hovering."""

    def make(_: Case, found: Found) -> Cell:
        row = found.get(library)
        if row is None:
            return _NOTHING
        if row.timing is None:
            return Cell(tag("abbr", "failed", title=row.failure or "no time was recorded"), style="bad")
        return Cell(quantities.seconds(row.timing.median), row.timing.median)

    return Column(library, figures=True, hint="median"), make


def spread_entry() -> Entry:
    """Of lapgrad's time."""

    def make(_: Case, found: Found) -> Cell:
        timing = found[OURS].timing if OURS in found else None
        return Cell(quantities.percent(timing.spread), timing.spread, "soft") if timing else _NOTHING

    return Column("±", figures=True, hint="half the distance of lapgrad's quartiles"), make


def speedup_entry(library: str) -> Entry:
    """How many times faster lapgrad is."""

    def make(_: Case, found: Found) -> Cell:
        ours, theirs = (found[name].timing if name in found else None for name in (OURS, library))
        return speedup_cell(theirs.median / ours.median if ours and theirs else None)

    return Column("faster", figures=True, hint=f"{library} / lapgrad"), make


def rate_entry() -> Entry:
    """Of lapgrad: operations, or bytes where nothing is computed."""

    def make(_: Case, found: Found) -> Cell:
        row = found.get(OURS)
        amount = (row.flops or row.moved) if row else None
        if row is None or row.timing is None or not amount:
            return _NOTHING
        rate, unit = amount / row.timing.median / 1e9, "Gflop/s" if row.flops else "GB/s"
        return Cell(f"{quantities.number(rate, 3)} {unit}", rate)

    return Column("rate", figures=True, hint="of lapgrad"), make


def gemm_entry() -> Entry:
    """Of lapgrad."""

    def make(_: Case, found: Found) -> Cell:
        part = found[OURS].gemm_fraction if OURS in found else None
        return Cell(quantities.percent(part), part)

    return Column("of gemm", figures=True, hint="part of the rate of a matrix product in the same run"), make


def memory_entry(library: str) -> Entry:
    """Peak of one call."""

    def make(_: Case, found: Found) -> Cell:
        extra = found[library].extra_bytes if library in found else None
        return Cell(quantities.memory(extra), extra, "soft")

    return Column(f"{library}, memory", figures=True, hint="peak beyond what was there before"), make


def difference_entry(library: str, rows: Iterable[Timed]) -> Entry:
    """Relative difference of the values of a criterion."""
    differences = {d.case: d.relative for d in findings.disagreements(rows) if d.peer == library}

    def make(case: Case, _: Found) -> Cell:
        difference = differences.get(case)
        return _NOTHING if difference is None else Cell(quantities.number(difference, 1), difference, "soft")

    return Column("value differs", figures=True, hint=f"{library} and lapgrad, relative"), make


def speedup_cell(value: float | None) -> Cell:
    """In colour where it is not about 1."""
    if value is None:
        return _NOTHING
    even = 1 + findings.EVEN
    style = "good" if value > even else "bad" if value < 1 / even else "soft"
    return Cell(quantities.ratio(value), value, style)
