"""Tables of the page: columns, and cells that are sorted by what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "–"
"""The text of a cell without a value. The script of the page sorts it to the end."""


@dataclass(frozen=True)
class Cell:
    """What a cell shows.

    Attributes:
        text: What is read.
        key: What the cell is sorted by; None: its text.
        style: A class of the style sheet: good, bad or soft.
        hint: An explanation on hovering.
    """

    text: str
    key: float | str | None = None
    style: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, whether its cells are numbers (aligned to the right), and an explanation on hovering."""

    heading: str
    is_numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is the heading of that row.

    Attributes:
        identity: Unique on the page.
        columns: One for each cell of a row.
        rows: Cells of each line.
    """

    identity: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
