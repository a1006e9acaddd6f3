"""Tables: a caption, cells that can be sorted by what they mean, and a box of their own that scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapgrad.report.markup import Content, Markup, tag


@dataclass(frozen=True)
class Cell:
    """What a cell shows.

    Attributes:
        content: text or markup.
        key: what it is sorted by; None: its text.
        style: a class of the style sheet: good, bad, soft.
    """

    content: Content
    key: float | str | None = None
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, whether its cells are figures (aligned to the right), and an explanation on hovering."""

    heading: str
    figures: bool = False
    hint: str = ""


def table(
    identity: str,
    caption: Content,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    sortable: bool = True,
) -> Markup:
    """A table; the first cell of a row is its heading.

    Args:
        identity: unique on the page; the box is labelled by the caption.
        caption: stands above it.
        columns: one for each cell of a row.
        rows: what it holds.
        sortable: whether the script of the page offers to sort and to filter it.

    Example:
        >>> print(table("t", "Times", [Column("what")], [[Cell("<potrf>")]], sortable=False))
        <div class="scroll" ...<th scope="col">what</th>...<th scope="row">&lt;potrf&gt;</th>...</div>
    """
    head = tag(
        "tr",
        (
            tag("th", c.heading, scope="col", class_="figure" if c.figures else None, title=c.hint or None)
            for c in columns
        ),
    )
    body = [tag("tr", _cells(row, columns)) for row in rows]
    name = f"{identity}-caption"
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption), id=name),
            tag("thead", head),
            tag("tbody", body),
            class_="sortable" if sortable and len(rows) > 1 else None,
        ),
        class_="scroll",
        id=identity,
        role="region",
        aria_labelledby=name,
        tabindex="0",
    )


def _cells(row: Sequence[Cell], columns: Sequence[Column]) -> list[Markup]:
    cells = []
    for i, (cell, column) in enumerate(zip(row, columns, strict=True)):
        style = " ".join(filter(None, ("figure" if column.figures else "", cell.style))) or None
        key = None if cell.key is None else str(cell.key)
        if i == 0:
            cells.append(tag("th", cell.content, scope="row", class_=style, data_key=key))
        else:
            cells.append(tag("td", cell.content, class_=style, data_key=key))
    return cells
