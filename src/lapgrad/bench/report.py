"""Measurements as tables for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from lapgrad import info
from lapgrad.bench.bars import Verdict
from lapgrad.bench.cases import dtype_name
from lapgrad.bench.machine import metadata
from lapgrad.bench.runner import Measurement

Table = tuple[list[str], list[list[str]]]
"""Headings and rows."""


def milliseconds(seconds: float) -> str:
    """Three significant digits.

    Example:
        >>> milliseconds(0.0123456), milliseconds(4.56e-6), milliseconds(1.5)
        ('12.3', '0.00456', '1500')
    """
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def timing_table(measurements: Sequence[Measurement]) -> Table:
    """One row per case, dtype and number of threads; three columns per phase."""
    phases = list(dict.fromkeys(m.phase for m in measurements))
    headings = ["operator", "shape", "dtype", "threads"]
    for phase in phases:
        headings += [f"{phase} ms", "torch ms", "faster", "rate"]
    rows = []
    for (case, threads), group in groupby(measurements, key=lambda m: (m.case, m.threads)):
        row = [case.operator.name, str(case.shape), dtype_name(case.dtype), str(threads)]
        found = {m.phase: m for m in group}
        for phase in phases:
            m = found[phase]
            unit = "GF/s" if case.operator.unit == "flop" else "GB/s"
            times = [milliseconds(m.ours.median), milliseconds(m.peer.median)]
            row += [*times, f"{m.ratio:.2f}×", f"{m.rate(m.ours):.3g} {unit}"]
        rows.append(row)
    return headings, rows


def short_table(measurements: Sequence[Measurement]) -> Table:
    """For documents: one row per case and number of threads, time and speed-up of each phase."""
    phases = list(dict.fromkeys(m.phase for m in measurements))
    headings = ["operator", "shape", "dtype"]
    for phase in phases:
        headings += [f"{phase}, ms", "torch, ms", "faster"]
    rows = []
    for (case, _), group in groupby(measurements, key=lambda m: (m.case, m.threads)):
        row = [f"`{case.operator.name}`", str(case.shape), dtype_name(case.dtype)]
        for m in group:
            row += [milliseconds(m.ours.median), milliseconds(m.peer.median), f"{m.ratio:.1f}×"]
        rows.append(row)
    return headings, rows


def circumstances(threads: Sequence[int], device: str = "cpu") -> str:
    """The machine in a line, to stand below a table."""
    facts = info.collect()
    versions = f"torch {facts['torch']['version']}, lapgrad {facts['lapgrad']['version']}"
    if device == "cuda":
        return f"{facts['cuda']['devices'][0]}, {versions}"
    counts = ", ".join(map(str, threads))
    return f"{facts['cpu']['model']}, {counts} threads, {versions}"


def scaling_table(measurements: Sequence[Measurement]) -> Table:
    """lapgrad's time at the fewest threads over its time at each number of threads."""
    counts = sorted({m.threads for m in measurements})
    times = {(m.case, m.phase, m.threads): m.ours.median for m in measurements}
    rows = []
    for case, phase in dict.fromkeys((m.case, m.phase) for m in measurements):
        first = times[case, phase, counts[0]]
        gains = [f"{first / times[case, phase, count]:.2f}×" for count in counts]
        rows.append([case.operator.name, str(case.shape), dtype_name(case.dtype), phase, *gains])
    return ["operator", "shape", "dtype", "phase", *(f"{count} threads" for count in counts)], rows


def bars_table(verdicts: Sequence[Verdict]) -> Table:
    """Wanted and measured figures."""
    rows = []
    for verdict in verdicts:
        bar = verdict.bar
        wanted, figure = f"{bar.sense} {bar.bound:g}{bar.unit}", f"{verdict.figure:.2f}{bar.unit}"
        rows.append([bar.what, wanted, figure, "pass" if verdict.passed else "MISS"])
    return ["what", "wanted", "measured", ""], rows


def markdown(table: Table) -> str:
    """The table in Markdown; figures are aligned to the right.

    Example:
        >>> print(markdown((["operator", "ms"], [["potrf", "1.2"]])))
        | operator | ms |
        |---|---:|
        | potrf | 1.2 |
    """
    headings, rows = table
    figures = [all(row[i][:1].isdigit() for row in rows) for i in range(len(headings))]
    rule = "|" + "|".join("---:" if figure else "---" for figure in figures) + "|"
    first, *others = ("| " + " | ".join(row) + " |" for row in [headings, *rows])
    return "\n".join([first, rule, *others])


def show(table: Table, title: str) -> None:
    """Prints the table: with rich where it is installed, in plain columns otherwise."""
    headings, rows = table
    if importlib.util.find_spec("rich") is None:
        print(f"\n{title}\n{plain(table)}")
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=title, title_justify="left", header_style="bold")
    for i, heading in enumerate(headings):
        is_figure = all(row[i][:1].isdigit() for row in rows)
        shown.add_column(heading, justify="right" if is_figure else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    # Off a terminal (a pipe, a log) rich would wrap at 80 columns.
    width = None if Console().is_terminal else 200
    Console(width=width).print(shown)


def plain(table: Table) -> str:
    """Aligned columns.

    Example:
        >>> print(plain((["operator", "ms"], [["potrf", "1.2"]])))
        operator  ms
        potrf     1.2
    """
    headings, rows = table
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def write_json(path: Path, measurements: Sequence[Measurement], verdicts: Sequence[Verdict] = ()) -> None:
    """Machine, measurements and bars; times in seconds."""
    content = {
        "machine": metadata(),
        "measurements": [m.as_dict() for m in measurements],
        "bars": [verdict.as_dict() for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _style(cell: str) -> str:
    if cell == "pass":
        return "green"
    return "bold red" if cell == "MISS" else ""
