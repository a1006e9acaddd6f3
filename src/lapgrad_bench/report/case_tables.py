"""Tables of one line per case, with the time and memory of each library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lapgrad_bench.report import findings, quantities
from lapgrad_bench.report.rows import OURS, Case, Measurement
from lapgrad_bench.report.tables import NOTHING, Cell, Column, Table

RowsOfCase = dict[str, Measurement]
"""Rows of one case, by library."""

Entry = tuple[Column, Callable[[Case, RowsOfCase], Cell]]
"""A column, and the function that makes its cells."""

_EMPTY = Cell(NOTHING)


def make_case_table(identity: str, rows: Iterable[Measurement], entries: Sequence[Entry]) -> Table:
    """Return a table of one line per case, in the order of the rows."""
    by_case: dict[Case, RowsOfCase] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.library] = row
    body = [[make_cell(case, found) for _, make_cell in entries] for case, found in by_case.items()]
    return Table(identity, [column for column, _ in entries], body)


def make_name_entry(heading: str, get_text: Callable[[Case], str], *, has_sizes: bool = False) -> Entry:
    """Return a column that names the case; one of sizes is sorted by the number of elements."""

    def make_cell(case: Case, _: RowsOfCase) -> Cell:
        return Cell(get_text(case), case.count_elements() if has_sizes else None)

    return Column(heading), make_cell


def make_time_entry(library: str) -> Entry:
    """Return the column of a library's median times."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        return make_time_cell(found[library]) if library in found else _EMPTY

    return Column(library, is_numeric=True, hint="median"), make_cell


def make_spread_entry() -> Entry:
    """Return the column of the spread of lapgrad's times."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        timing = found[OURS].timing if OURS in found else None
        return Cell(quantities.format_percent(timing.spread), timing.spread, "soft") if timing else _EMPTY

    return Column("±", is_numeric=True, hint="half the distance of lapgrad's quartiles"), make_cell


def make_speedup_entry(library: str) -> Entry:
    """Return the column of how many times faster lapgrad is than a library."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        ours, theirs = (found[name].timing if name in found else None for name in (OURS, library))
        return make_speedup_cell(theirs.median / ours.median if ours and theirs else None)

    return Column("faster", is_numeric=True, hint=f"{library} / lapgrad"), make_cell


def make_rate_entry() -> Entry:
    """Return the column of lapgrad's rate: operations per second, or bytes where data are only moved."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        row = found.get(OURS)
        amount = (row.flops or row.moved) if row else None
        if row is None or row.timing is None or not amount:
            return _EMPTY
        rate = amount / row.timing.median / 1e9
        return Cell(f"{quantities.format_number(rate, 3)}{'' if row.flops else ' GB/s'}", rate)

    return Column("Gflop/s", is_numeric=True, hint="of lapgrad; GB/s where nothing is computed"), make_cell


def make_gemm_entry() -> Entry:
    """Return the column of lapgrad's rate relative to that of a matrix product."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        part = found[OURS].gemm_fraction if OURS in found else None
        return Cell(quantities.format_percent(part), part)

    hint = "part of the rate of a matrix product in the same run"
    return Column("of gemm", is_numeric=True, hint=hint), make_cell


def make_memory_entry(library: str) -> Entry:
    """Return the column of a library's peak memory during one call."""

    def make_cell(_: Case, found: RowsOfCase) -> Cell:
        extra = found[library].extra_bytes if library in found else None
        return Cell(quantities.format_memory(extra), extra, "soft")

    hint = "peak beyond what was there before"
    return Column(f"{library}, memory", is_numeric=True, hint=hint), make_cell


def make_time_cell(row: Measurement) -> Cell:
    """Return the cell of a median time; where the library failed, the reason shows on hovering."""
    if row.timing is None:
        return Cell("failed", style="bad", hint=row.failure or "no time was recorded")
    return Cell(quantities.format_seconds(row.timing.median), row.timing.median)


def make_speedup_cell(value: float | None) -> Cell:
    """Return the cell of a speed-up, in colour where it is not about 1."""
    if value is None:
        return _EMPTY
    even = 1 + findings.EVEN
    style = "good" if value > even else "bad" if value < 1 / even else "soft"
    return Cell(quantities.format_ratio(value), value, style)
