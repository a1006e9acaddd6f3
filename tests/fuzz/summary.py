"""The report of a run: prints failures when they happen, and a table at the end."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class _Row:
    cases: int = 0
    failures: int = 0
    undecided: int = 0
    worst: float = 0.0
    seconds: float = 0.0


class Summary:
    """Counts of cases and failures per operator."""

    def __init__(self, verbose: bool = False) -> None:
        self._rows: dict[str, _Row] = {}
        self._verbose = verbose

    @property
    def failures(self) -> int:
        return sum(row.failures for row in self._rows.values())

    def add(self, event: dict[str, Any], repeat: str) -> None:
        """Count a case, and print it if it failed."""
        row = self._rows.setdefault(event["case"].rpartition(":")[0], _Row())
        row.cases += 1
        row.undecided += bool(event.get("undecided"))
        row.seconds += event.get("seconds", 0.0)
        if not event["failures"]:
            row.worst = max(row.worst, 0.0 if event["undecided"] else event["worst"])
        if event["failures"] or self._verbose:
            row.failures += bool(event["failures"])
            print(f"{'FAILED' if event['failures'] else 'passed'} {event['case']}: {event['description']}")
            for failure in event["failures"]:
                print(f"    {failure}")
            print(f"    repeat with: {repeat}", flush=True)

    def table(self) -> str:
        """Per operator: cases, failures, cases with an open sign, the largest error over what is allowed."""
        lines = [f"{'operator':20} {'cases':>7} {'failed':>7} {'open':>6} {'error':>7} {'ms':>6}"]
        for name, row in self._rows.items():
            lines.append(
                f"{name:20} {row.cases:7d} {row.failures:7d} {row.undecided:6d} {row.worst:7.2f} "
                f"{1e3 * row.seconds / row.cases:6.0f}"
            )
        rows = self._rows.values()
        lines.append(f"{'all':20} {sum(row.cases for row in rows):7d} {self.failures:7d}")
        return "\n".join(lines)
