"""What to know before any figure: interrupted runs, busy machines, files that could not be used."""

from __future__ import annotations

from collections.abc import Sequence

from lapgrad.report.markup import Markup, tag
from lapgrad.report.rows import Fold, Learned, Timed
from lapgrad.report.sections import deep_regression, table1
from lapgrad.report.sources import Group, Problem, Run, merged


def notices(runs: Sequence[Run], problems: Sequence[Problem], groups: Sequence[Group]) -> list[Markup]:
    """In the order of their weight."""
    texts = [f"Left out: {problem.reason}." for problem in problems]
    for run in runs:
        name, machine = run.path.name, run.machine
        if not run.results.complete:
            texts.append(
                f"{name} was interrupted, or its run has not ended: it holds a part of what was asked for."
            )
        if not run.rows:
            texts.append(f"{name} holds no figures.")
        if machine.busy:
            load = machine.facts["load_average"][0]
            texts.append(
                f"{name}: the machine was busy when the run began (load {load:.1f}): expect odd figures."
            )
        if machine.versions[1].endswith("dirty"):
            texts.append(f"{name}: the sources had changes that are in no commit ({machine.versions[1]}).")
    for group in groups:
        replaced = _replaced(group)
        if replaced:
            files = ", ".join(run.path.name for run in group.runs)
            texts.append(f"{replaced:,} cases are in more than one of {files}: the newest file counts.")
    return [tag("p", text, class_="notice", role="note") for text in texts]


def _replaced(group: Group) -> int:
    if group.kind == "table1":
        return merged(group, Fold, table1.identity).replaced
    if group.kind == "deep_gp_regression":
        return merged(group, Fold, deep_regression.identity).replaced
    if group.kind == "table2":
        return merged(group, Learned, lambda row: row.arch).replaced
    return merged(group, Timed, lambda row: row.case).replaced
