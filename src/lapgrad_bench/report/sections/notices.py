"""Warnings above all numbers: interrupted runs, busy machines, files that could not be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lapgrad_bench.report.rows import FoldResult, Measurement, TrainingRecord
from lapgrad_bench.report.sections import deep_regression, table1
from lapgrad_bench.report.sources import Group, Problem, Run, merge_rows


def write_notices(runs: Sequence[Run], problems: Sequence[Problem], groups: Sequence[Group]) -> list[str]:
    """Return sentences, the most important first."""
    texts = [f"Left out: {problem.reason}." for problem in problems]
    for run in runs:
        found = list(_describe_run(run))
        if found:
            texts.append(f"{run.path.name} {'; it '.join(found)}.")
    for group in groups:
        replaced = _count_replaced(group)
        if replaced:
            files = ", ".join(run.path.name for run in group.runs)
            texts.append(f"{replaced:,} cases are in more than one of {files}: the newest file counts.")
    return texts


def _describe_run(run: Run) -> Iterator[str]:
    """Yield what a reader must know about one file."""
    machine = run.machine
    if not run.results.complete:
        yield "was interrupted, or its run has not ended: it holds a part of what was asked for"
    if not run.rows:
        yield "holds no figures"
    if machine.is_busy:
        load = machine.facts["load_average"][0]
        yield f"began on a busy machine (load {load:.1f}): expect odd figures"
    if machine.versions[1].endswith("dirty"):
        yield f"comes from sources with changes that are in no commit ({machine.versions[1]})"


def _count_replaced(group: Group) -> int:
    """Return the number of cases for which an older file has figures, too."""
    if group.kind == "table1":
        return merge_rows(group, FoldResult, table1.identify_row).replaced
    if group.kind == "deep_gp_regression":
        return merge_rows(group, FoldResult, deep_regression.identify_row).replaced
    if group.kind == "table2":
        return merge_rows(group, TrainingRecord, lambda row: row.arch).replaced
    return merge_rows(group, Measurement, lambda row: row.case).replaced
