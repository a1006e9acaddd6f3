"""Tables for the terminal and as Markdown."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lapgrad import info

Table = tuple[list[str], list[list[str]]]
"""Headings and rows."""


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three significant digits.

    Example:
        >>> format_milliseconds(0.0123456), format_milliseconds(4.56e-6), format_milliseconds(1.5)
        ('12.3', '0.00456', '1500')
    """
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def describe_machine(threads: Sequence[int], device: str = "cpu") -> str:
    """Return processor, threads and versions in a line, to be printed below a table."""
    facts = info.collect()
    versions = f"torch {facts['torch']['version']}, lapgrad {facts['lapgrad']['version']}"
    if device == "cuda":
        return f"{facts['cuda']['devices'][0]}, {versions}"
    counts = ", ".join(map(str, threads))
    return f"{facts['cpu']['model']}, {counts} threads, {versions}"


def make_bars_table(bars: Sequence[Mapping[str, Any]]) -> Table:
    """Return wanted and measured figures of a results file; on a GPU also those of the GPU's work alone."""
    rows = []
    for bar in bars:
        unit, device = bar["unit"], bar.get("device")
        wanted = f"{bar['sense']} {bar['wanted']:g}{unit}"
        alone = "-" if device is None else f"{device:.2f}{unit}"
        verdict = "pass" if bar["passed"] else "MISS"
        known = bar["figure"] is not None and math.isfinite(bar["figure"])
        rows.append([bar["what"], wanted, f"{bar['figure']:.2f}{unit}" if known else "-", verdict, alone])
    if all(bar.get("device") is None for bar in bars):
        return ["what", "wanted", "measured", ""], [row[:-1] for row in rows]
    return ["what", "wanted", "measured", "", "GPU's work alone"], rows


def format_markdown(table: Table) -> str:
    """Return the table in Markdown, with columns of figures aligned to the right.

    Example:
        >>> print(format_markdown((["operator", "ms"], [["potrf", "1.2"]])))
        | operator | ms |
        |---|---:|
        | potrf | 1.2 |
    """
    headings, rows = table
    figures = [_is_figure(table, i) for i in range(len(headings))]
    rule = "|" + "|".join("---:" if figure else "---" for figure in figures) + "|"
    first, *others = ("| " + " | ".join(row) + " |" for row in [headings, *rows])
    return "\n".join([first, rule, *others])


def print_table(
    table: Table,
    title: str,
    *,
    narrow: Table | None = None,
    narrow_note: str = "",
    framed: bool = True,
    keys: int = 1,
) -> None:
    """Print the table, with rich if it is installed, in plain columns otherwise.

    A terminal (80 columns if there is none) that is too narrow for the table gets the longest texts wrapped;
    where that is not enough, some columns first and the others below them.

    Args:
        table: headings and rows.
        title: printed above it.
        narrow: printed in its place where the terminal is too narrow for it.
        narrow_note: printed below the narrow table.
        framed: draw lines around the entries.
        keys: How many columns say what a row is about; each part of a table that is split has them.
    """
    columns = shutil.get_terminal_size().columns
    if narrow is not None and _measure_width(table) > columns:
        print_table(narrow, title, framed=False)
        if narrow_note:
            print(narrow_note)
        return
    if framed and _measure_wrapped_width(table) > columns:
        for part in split_columns(table, columns, keys):
            print_table(part, title, framed=False)
            title = ""
        return
    headings, rows = table
    if importlib.util.find_spec("rich") is None:
        print(f"\n{title}\n{format_plain(table)}")
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=title or None, title_justify="left", header_style="bold")
    if not framed:
        shown.box, shown.padding, shown.pad_edge = None, (0, 2, 0, 0), False
    # A terminal cuts off what does not fit: in a table that is too wide the longest texts are wrapped.
    wide = _measure_width(table) > shutil.get_terminal_size().columns
    longest = max(range(len(headings)), key=lambda i: max(len(row[i]) for row in [headings, *rows]))
    for i, heading in enumerate(headings):
        wraps = framed and wide and i == longest
        justify: Literal["left", "right"] = "right" if _is_figure(table, i) else "left"
        shown.add_column(heading, justify=justify, no_wrap=not wraps, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=_choose_style(cell)) for cell in row))
    # In a pipe or a file rich would wrap lines at 80 columns.
    width = None if Console().is_terminal else 300
    Console(width=width).print(shown)


def format_plain(table: Table) -> str:
    """Return the table as text in aligned columns.

    Example:
        >>> print(format_plain((["operator", "ms"], [["potrf", "1.2"]])))
        operator  ms
        potrf     1.2
    """
    headings, rows = table
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def split_columns(table: Table, width: int, keys: int = 1) -> list[Table]:
    """Return parts of a table that fit into a number of columns; each begins with the first ``keys`` columns.

    Example:
        >>> for part in split_columns((["data", "RMSE", "TLL"], [["power", "4.105", "-2.83"]]), 12):
        ...     print(format_plain(part))
        data   RMSE
        power  4.105
        data   TLL
        power  -2.83
    """
    headings, rows = table
    widths = [max(len(row[i]) for row in [headings, *rows]) + 2 for i in range(len(headings))]
    groups: list[list[int]] = [[]]
    for i in range(keys, len(headings)):
        if groups[-1] and sum(widths[:keys]) + sum(widths[j] for j in groups[-1]) + widths[i] - 2 > width:
            groups.append([])
        groups[-1].append(i)
    chosen = [[*range(keys), *group] for group in groups]
    return [([headings[i] for i in part], [[row[i] for i in part] for row in rows]) for part in chosen]


def _measure_wrapped_width(table: Table) -> int:
    """Return the columns that the table takes if its longest texts are wrapped to 20 characters."""
    headings, rows = table
    widths = [max(len(row[i]) for row in [headings, *rows]) + 3 for i in range(len(headings))]
    return sum(widths) + 1 - max(max(widths) - 23, 0)


def _measure_width(table: Table) -> int:
    """Return the columns of a terminal that the table takes, with its frame."""
    headings, rows = table
    return sum(max(len(row[i]) for row in [headings, *rows]) + 3 for i in range(len(headings))) + 1


def _is_figure(table: Table, column: int) -> bool:
    """Return whether all entries of a column are figures or '-'."""
    return all(row[column][:1].isdigit() or row[column] == "-" for row in table[1])


def _choose_style(cell: str) -> str:
    if cell == "pass":
        return "green"
    return "bold red" if cell in ("MISS", "WORSE") else ""
