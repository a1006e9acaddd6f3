"""Results files: finds them in a folder, reads them, and groups those of one machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lapgrad._exceptions import FileFormatError
from lapgrad_bench.common.results import Results
from lapgrad_bench.report.rows import Measurement, Row, parse_rows

KINDS = ("ops", "sweep", "models", "table1", "table2", "deep_gp_regression")
"""In the order of the page."""

_MARK = b'"lapgrad_results"'
_AnyRow = TypeVar("_AnyRow", bound=Row)


@dataclass(frozen=True)
class Run:
    """One results file."""

    path: Path
    results: Results
    rows: tuple[Row, ...]

    @property
    def machine(self) -> Machine:
        """Where it was measured."""
        return Machine(
            self.results.machine, any(getattr(row, "device", "") == "cuda" for row in self._iterate_cases())
        )

    def _iterate_cases(self) -> Iterable[Any]:
        return (row.case if isinstance(row, Measurement) else row for row in self.rows)


@dataclass(frozen=True)
class Problem:
    """A file that could not be used."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Machine:
    """The facts about a machine in a results file; one that is missing is an empty text."""

    facts: dict[str, Any]
    on_gpu: bool = False

    def get_fact(self, *path: str) -> str:
        """Return the text at a path of keys; empty where there is none.

        Example:
            >>> Machine({"cpu": {"model": "Z80", "cores": 2}}).get_fact("cpu", "cores")
            '2'
            >>> Machine({}).get_fact("cpu", "model")
            ''
        """
        value: Any = self.facts
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
        if isinstance(value, dict):
            return ", ".join(f"{key}={inner}" for key, inner in value.items())
        return "" if value is None else str(value)

    @property
    def cpu(self) -> str:
        """Model and number of cores."""
        model = self.get_fact("cpu", "model") or "a CPU that was not recorded"
        cores = self.get_fact("cpu", "cores_allowed") or self.get_fact("cpu", "cores")
        return f"{model}, {cores} cores" if cores else model

    @property
    def gpu(self) -> str:
        """Names of CUDA devices."""
        return self.get_fact("cuda", "devices")

    @property
    def name(self) -> str:
        """What the figures were taken on."""
        return self.gpu or "a GPU that was not recorded" if self.on_gpu else self.cpu

    @property
    def date(self) -> str:
        """In ISO 8601: as text, dates are in their order."""
        return self.get_fact("date")

    @property
    def versions(self) -> tuple[str, str, str]:
        """lapgrad, its commit, torch."""
        return (
            self.get_fact("lapgrad", "version") or self.get_fact("versions", "lapgrad"),
            self.get_fact("commit") or self.get_fact("lapgrad", "commit"),
            self.get_fact("torch", "version") or self.get_fact("versions", "torch"),
        )

    @property
    def is_busy(self) -> bool:
        """Whether others were at work when the run began: more than half of the cores were taken."""
        try:
            load, cores = float(self.facts["load_average"][0]), float(self.facts["cpu"]["cores"])
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        return load > 0.5 * cores


@dataclass(frozen=True)
class Group:
    """Runs of one kind, on one machine, with the same lapgrad and torch.

    Attributes:
        letter: A, B, ... where a page has several groups, else empty.
        title: the machine, and what distinguishes the group from others on the same machine.
    """

    kind: str
    runs: tuple[Run, ...]
    letter: str = ""
    title: str = ""

    @property
    def machine(self) -> Machine:
        """Of all runs."""
        return self.runs[0].machine


@dataclass(frozen=True)
class MergedRows(Generic[_AnyRow]):
    """Rows of several runs; `replaced` counts cases for which a newer run replaced older figures."""

    rows: tuple[_AnyRow, ...]
    replaced: int


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """Return the runs in the order of the files, and the files that could not be used, with reasons."""
    runs: list[Run] = []
    problems: list[Problem] = []
    for path in dict.fromkeys(paths):
        try:
            results = Results.load(path)
            runs.append(Run(path, results, parse_rows(results.kind, results.rows, str(path))))
        except (FileNotFoundError, FileFormatError) as reason:
            problems.append(Problem(path, str(reason)))
        except OSError as reason:
            problems.append(Problem(path, f"{path} cannot be read: {reason.strerror or reason}"))
        except UnicodeDecodeError:
            problems.append(Problem(path, f"{path} is not JSON: it is not text"))
        except RecursionError:
            problems.append(
                Problem(path, f"{path} is not a results file of lapgrad: it is nested too deeply")
            )
    return runs, problems


def find_results(folder: Path) -> list[Path]:
    """Return the results files of a folder, by name. JSON files of other programs are ignored.

    A file that says it is one of lapgrad's, but is broken or of a newer format, is among them: `read_runs`
    says what is wrong with it.
    """
    return [path for path in sorted(folder.glob("*.json")) if path.is_file() and _has_mark(path)]


def _has_mark(path: Path) -> bool:
    """Return whether the file has the mark of the format near its beginning, where writers put it."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(4096)
    except OSError:
        return False


def group_runs(runs: Iterable[Run], kind: str) -> list[Group]:
    """Return the runs of one kind grouped by machine and versions, the newest group first."""
    by_machine: dict[Hashable, list[Run]] = {}
    for run in runs:
        if run.results.kind == kind:
            machine = run.machine
            key = (machine.on_gpu, machine.cpu, machine.gpu, machine.versions)
            by_machine.setdefault(key, []).append(run)
    ordered = sorted(by_machine.values(), key=lambda group: max(r.machine.date for r in group), reverse=True)
    several = len(ordered) > 1
    titles = _make_titles([group[0].machine for group in ordered])
    return [
        Group(
            kind,
            tuple(sorted(group, key=lambda r: r.machine.date)),
            _choose_letter(i) if several else "",
            title,
        )
        for i, (group, title) in enumerate(zip(ordered, titles, strict=True))
    ]


def _make_titles(machines: Sequence[Machine]) -> list[str]:
    """Return the names of the machines, and the versions that differ between groups of one machine."""
    titles = []
    for machine in machines:
        rivals = [other for other in machines if other is not machine and other.name == machine.name]
        parts = [machine.name]
        for name, i in (("lapgrad", 0), ("commit", 1), ("torch", 2)):
            if any(other.versions[i] != machine.versions[i] for other in rivals):
                parts.append(f"{name} {machine.versions[i] or 'not recorded'}")
        titles.append(", ".join(parts))
    return titles


def _choose_letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else f"A{i}"


def merge_rows(group: Group, kind: type[_AnyRow], case: Callable[[_AnyRow], Hashable]) -> MergedRows[_AnyRow]:
    """Return the rows of all runs of a group; where two runs have the same case, those of the newer run.

    Rows of one case never come from two runs: the speed of the machine may have changed between them, and a
    ratio would mean nothing.
    """
    newest: dict[Hashable, list[_AnyRow]] = {}
    replaced = 0
    for run in group.runs:
        own: dict[Hashable, list[_AnyRow]] = {}
        for row in run.rows:
            if isinstance(row, kind):
                own.setdefault(case(row), []).append(row)
        replaced += sum(key in newest for key in own)
        newest.update(own)
    return MergedRows(tuple(row for rows in newest.values() for row in rows), replaced)


def merge_measurements(group: Group) -> tuple[Measurement, ...]:
    """Return the times of all runs of a group, of each case those of the newest run."""
    return merge_rows(group, Measurement, lambda row: row.case).rows
