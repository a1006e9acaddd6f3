"""What to know before any figure: interrupted runs, busy machines, files that could not be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lapgrad.report.markup import Markup, tag
from lapgrad.report.rows import Fold, Learned, Timed
from lapgrad.report.sections import deep_regression, table1
from lapgrad.report.sources import Group, Problem, Run, merged


def notices(runs: Sequence[Run], problems: Sequence[Problem], groups: Sequence[Group]) -> list[Markup]:
    """In the order of their weight."""
    texts = [f"Left out: {problem.reason}." for problem in problems]
    for run in runs:
        found = list(_of(run))
        if found:
            texts.append(f"{run.path.name} {'; it '.join(found)}.")
    for group in groups:
        replaced = _replaced(group)
        if replaced:
            files = ", ".join(run.path.name for run in group.runs)
            texts.append(f"{replaced:,} cases are in more than one of {files}: the newest file counts.")
    return [tag("p", text, class_="notice", role="note") for text in texts]


def _of(run: Run) -> Iterator[str]:
    """What is to be known of one file."""
    machine = run.machine
    if not run.results.complete:
        yield "was interrupted, or its run has not ended: it holds a part of what was asked for"
    if not run.rows:
        yield "holds no figures"
    if machine.busy:
        load = machine.facts["load_average"][0]
        yield f"began on a busy machine (load {load:.1f}): expect odd figures"
    if machine.versions[1].endswith("dirty"):
        yield f"comes from sources with changes that are in no commit ({machine.versions[1]})"


def _replaced(group: Group) -> int:
    if group.kind == "table1":
        return merged(group, Fold, table1.identity).replaced
    if group.kind == "deep_gp_regression":
        return merged(group, Fold, deep_regression.identity).replaced
    if group.kind == "table2":
        return merged(group, Learned, lambda row: row.arch).replaced
    return merged(group, Timed, lambda row: row.case).replaced
