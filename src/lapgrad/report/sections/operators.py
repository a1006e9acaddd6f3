"""Operators: speed-ups, time over size, fraction of a matrix product, and every case in a table."""

from __future__ import annotations

from collections.abc import Sequence

from lapgrad.report import findings, quantities
from lapgrad.report.cards import card, failures_sentence, memory_sentence, tally_card
from lapgrad.report.case_tables import (
    Entry,
    case_table,
    gemm_entry,
    memory_entry,
    name_entry,
    rate_entry,
    speedup_cell,
    speedup_entry,
    spread_entry,
    time_entry,
)
from lapgrad.report.findings import Tally
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.rows import OURS, Timed
from lapgrad.report.sections import operator_plots
from lapgrad.report.sources import Group, merged
from lapgrad.report.tables import Cell, Column, table
from lapgrad.report.versions import versioned

TITLE = "Operators"


def rows_of(group: Group) -> tuple[Timed, ...]:
    """All timings, one run per case."""
    return merged(group, Timed, lambda row: row.case).rows


def cards(group: Group) -> list[Markup]:
    """One per device, number of threads and peer; one on memory; one on cases that a library failed on."""
    rows = rows_of(group)
    found = findings.tallies(findings.comparisons(rows))
    speed = [
        tally_card(
            f"{_prefix(group)}{findings.where(tally.device, tally.threads)}, against {tally.peer}",
            versioned(group, tally.peer),
            tally,
            _medians(tally),
        )
        for tally in found
    ]
    others = {"memory": memory_sentence(rows), "failures": failures_sentence(rows)}
    return speed + [card(f"{_prefix(group)}{title}", text) for title, text in others.items() if text]


def _medians(tally: Tally) -> str:
    """Of phases, of single matrices and of batches."""

    def of_phase(phase: str) -> float | None:
        return tally.among(lambda case: case.phase == phase)

    parts = {phase: of_phase(phase) for phase in dict.fromkeys(c.case.phase for c in tally.comparisons)}
    parts["single matrices"] = tally.among(lambda case: len(case.shape) == 2)
    parts["batches"] = tally.among(lambda case: len(case.shape) > 2)
    known = [f"{name} {quantities.ratio(value)}" for name, value in parts.items() if value is not None]
    return f"Medians: {', '.join(known)}."


def _prefix(group: Group) -> str:
    return f"{group.letter}: operators, " if group.letter else "Operators, "


def body(group: Group, level: int) -> Markup:
    """Everything about one group; `level` is that of its headings."""
    rows = rows_of(group)
    compared = findings.comparisons(rows)
    heading = f"h{level}"
    identity = f"ops{group.letter}"
    parts = [_described(rows)]
    if compared:
        parts += [
            tag(heading, "All cases"),
            operator_plots.ranked(group, compared),
            tag(heading, "By operator"),
        ]
        parts += [operator_plots.by_operator(group, tally) for tally in findings.tallies(compared)]
    over_size = operator_plots.over_size(rows)
    if over_size:
        parts += [tag(heading, "Time over size"), *over_size]
    fractions = operator_plots.fractions(rows)
    if fractions:
        parts += [tag(heading, "Fraction of a matrix product"), fractions]
    parts += [tag(heading, "Every case"), _every_case(identity, rows)]
    return joined(*parts)


def overview(groups: Sequence[Group]) -> Markup | None:
    """Median speed-up of each operator, one column per group and peer: for several machines or versions."""
    if len(groups) < 2:
        return None
    columns, found = [Column("operator")], []
    for group in groups:
        for tally in findings.tallies(findings.comparisons(rows_of(group))):
            place = findings.where(tally.device, tally.threads)
            columns.append(Column(f"{group.letter}: {place}, {tally.peer}", figures=True, hint=group.title))
            found.append(tally.medians())
    names = dict.fromkeys(name for medians in found for name in medians)
    rows = [[Cell(name), *(speedup_cell(medians.get(name)) for medians in found)] for name in names]
    caption = (
        "Median speed-up of lapgrad by operator. Each is a ratio within one run; columns are different runs."
    )
    return table("ops-overview", caption, columns, rows) if rows else None


def _described(rows: Sequence[Timed]) -> Markup:
    cases = dict.fromkeys(row.case for row in rows)
    operators = dict.fromkeys(case.subject for case in cases)
    spread = findings.typical_spread(rows)
    text = (
        f"{quantities.counted(len(cases), 'case')} of {quantities.counted(len(operators), 'operator')}: "
        f"{', '.join(dict.fromkeys(case.dtype for case in cases))}; "
        f"{', '.join(dict.fromkeys(case.phase for case in cases))}; "
        f"shapes {', '.join(dict.fromkeys(case.extent for case in cases))}. "
    )
    text += "Results and gradients of all libraries were compared before anything was timed. "
    if spread is not None:
        text += f"Quartiles lie {quantities.percent(spread)} beside the median (median of all cases)."
    return tag("p", text)


def _every_case(identity: str, rows: Sequence[Timed]) -> Markup:
    entries: list[Entry] = [
        name_entry("operator", lambda case: case.subject),
        name_entry("shape", lambda case: case.extent, sizes=True),
        name_entry("dtype", lambda case: case.dtype),
        name_entry("phase", lambda case: case.phase),
    ]
    if len({(row.case.device, row.case.threads) for row in rows}) > 1:
        entries.append(name_entry("where", lambda case: findings.where(case.device, case.threads)))
    with_memory = {row.library for row in rows if row.extra_bytes is not None}
    for name in findings.libraries(rows):
        entries.append(time_entry(name))
        entries.append(spread_entry() if name == OURS else speedup_entry(name))
    entries.append(rate_entry())
    if any(row.gemm_fraction is not None for row in rows):
        entries.append(gemm_entry())
    entries += [memory_entry(name) for name in findings.libraries(rows) if name in with_memory]
    caption = "Medians per call. Faster: how many times; within one run."
    return case_table(f"{identity}-cases", caption, rows, entries)
