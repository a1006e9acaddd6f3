"""Compares two results files of operators: what got slower, what got faster.

The speed of a machine changes from day to day, and with the other programs on it. So the comparison is not in
seconds but in costs: seconds times the rate of torch.mm in the same run, the flops of a matrix product that
takes as long as the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lapgrad_bench.bench.ops.tables import CaseKey, format_shape, make_case_key
from lapgrad_bench.common.results import Results, Row
from lapgrad_bench.common.text_tables import Table, format_milliseconds

LIMIT = 1.15
"""A case whose cost grew by more than this factor got worse."""

Key = tuple[CaseKey, str]
"""A case and a phase."""


@dataclass(frozen=True)
class Change:
    """The rows of one phase of one case in both files."""

    key: Key
    old: Row
    new: Row

    @property
    def ratio(self) -> float:
        """The new cost over the old one."""
        return compute_cost(self.new) / compute_cost(self.old)

    @property
    def verdict(self) -> str:
        """WORSE, better or same."""
        if self.ratio > LIMIT:
            return "WORSE"
        return "better" if self.ratio < 1.0 / LIMIT else "same"


@dataclass(frozen=True)
class Comparison:
    """The comparison of two files.

    Attributes:
        changes: cases that are in both.
        only_old, only_new: cases that are in one of them.
        unmeasured: cases in both that cannot be compared, because a rate of torch.mm is missing.
        differences: differences of machine, versions, threads and dtypes, in words.
    """

    changes: list[Change] = field(default_factory=list)
    only_old: list[Key] = field(default_factory=list)
    only_new: list[Key] = field(default_factory=list)
    unmeasured: list[Key] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def worse(self) -> list[Change]:
        """Changes for the worse, the worst first."""
        found = [change for change in self.changes if change.verdict == "WORSE"]
        return sorted(found, key=lambda change: -change.ratio)

    @property
    def better(self) -> list[Change]:
        """Changes for the better, the best first."""
        found = [change for change in self.changes if change.verdict == "better"]
        return sorted(found, key=lambda change: change.ratio)


def compute_cost(row: Row) -> float:
    """Return the flops that torch.mm makes in the time of a call.

    Example:
        >>> compute_cost({"median_s": 0.5, "gemm_rate": 6e10})
        30000000000.0
    """
    return float(row["median_s"] * row["gemm_rate"])


def compare(old: Results, new: Results) -> Comparison:
    """Compare the rows of lapgrad in two files."""
    before, after = _select_own_rows(old), _select_own_rows(new)
    found = Comparison(
        only_old=[key for key in before if key not in after],
        only_new=[key for key in after if key not in before],
        differences=_list_differences(old, new),
    )
    for key in before:
        if key in after:
            change = Change(key, before[key], after[key])
            if change.old.get("gemm_rate") and change.new.get("gemm_rate"):
                found.changes.append(change)
            else:
                found.unmeasured.append(key)
    return found


def make_table(comparison: Comparison) -> Table:
    """Return a table of the changes: times, fractions of the rate of gemm, and growth of the cost."""
    lines = []
    for change in [*comparison.worse, *comparison.better]:
        old, new = change.old, change.new
        lines.append(
            [
                old["operator"],
                format_shape(old["shape"]),
                old["dtype"],
                str(old["threads"]),
                old["phase"],
                format_milliseconds(old["median_s"]),
                format_milliseconds(new["median_s"]),
                _format_percent(old["gemm_fraction"]),
                _format_percent(new["gemm_fraction"]),
                f"{100.0 * (change.ratio - 1.0):+.0f} %",
                change.verdict,
            ]
        )
    headings = ["operator", "shape", "dtype", "threads", "phase", "old ms", "new ms"]
    return [*headings, "old, of gemm", "new, of gemm", "cost", ""], lines


def list_notes(comparison: Comparison, names: tuple[str, str], repeated: bool) -> list[str]:
    """Return notes to be printed below the table, one per line.

    Args:
        comparison: the comparison of two files.
        names: the names of the files.
        repeated: whether cases that looked worse were measured again.
    """
    same = len(comparison.changes) - len(comparison.worse) - len(comparison.better)
    lines = [
        f"{len(comparison.changes)} figures compared: {len(comparison.worse)} worse by more than "
        f"{100.0 * (LIMIT - 1.0):.0f} % (time × rate of gemm), {len(comparison.better)} better, {same} same"
    ]
    if comparison.worse and not repeated:
        lines.append("nothing was measured again: what is worse may be noise")
    lines += comparison.differences
    for keys, what in (
        (comparison.only_old, f"only in {names[0]}"),
        (comparison.only_new, f"only in {names[1]}"),
        (comparison.unmeasured, "not compared, as a rate of gemm is missing"),
    ):
        if keys:
            lines.append(f"{what} ({len(keys)}): {'; '.join(_group_phases(keys))}")
    return lines


def _select_own_rows(results: Results) -> dict[Key, Row]:
    return {(make_case_key(row), row["phase"]): row for row in results.rows if row["library"] == "lapgrad"}


def _list_differences(old: Results, new: Results) -> list[str]:
    lines = []
    places = {
        "processor": ("cpu", "model"),
        "number of cores": ("cpu", "cores"),
        "torch": ("torch", "version"),
        "GPU": ("cuda", "devices"),
    }
    for what, path in places.items():
        there, here = _read_fact(old.machine, path), _read_fact(new.machine, path)
        if there != here:
            lines.append(f"another {what}: {there} in the old file, {here} now")
    for what in ("threads", "dtype", "device"):
        there, here = _collect_values(old.rows, what), _collect_values(new.rows, what)
        if there and here and there != here:
            lines.append(f"other {what}: {', '.join(there)} in the old file, {', '.join(here)} now")
    for results, which in ((old, "old"), (new, "new")):
        if not results.complete:
            lines.append(f"the {which} file is that of a run that was interrupted")
    return lines


def _read_fact(machine: dict[str, Any], path: Sequence[str]) -> Any:
    value: Any = machine
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _collect_values(rows: Iterable[Row], what: str) -> list[str]:
    return [str(value) for value in sorted({row[what] for row in rows})]


def _group_phases(keys: Sequence[Key]) -> list[str]:
    """Return the names of cases, with all phases of a case in one name."""
    phases: dict[CaseKey, list[str]] = {}
    for case, phase in keys:
        phases.setdefault(case, []).append(phase)
    return [
        f"{name} {format_shape(shape)} {dtype} {device} {threads} threads {'+'.join(found)}"
        for (name, shape, dtype, device, threads), found in phases.items()
    ]


def _format_percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100.0 * fraction:.0f} %"
