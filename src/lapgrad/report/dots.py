"""Plots of one dot per case: along a line for each operator, and all cases in their order.

Places are percentages of the width: the plots fill what room there is, and letters keep their size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lapgrad.report.axes import Axis
from lapgrad.report.markup import Content, Markup, escaped, joined, tag
from lapgrad.report.panels import COLOURS

_ROW = 24
_RANKED = 260
_TICKS = 5
_MARGIN = 3.0
"""Percent on both sides, so that dots at the ends are whole."""


@dataclass(frozen=True)
class Dot:
    """A value; `title` shows on hovering; hollow dots lie below filled ones."""

    value: float
    title: str
    colour: int = 0
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """The dots of one line, its name, the text at its end, and what is said to those who cannot see it."""

    name: str
    dots: Sequence[Dot]
    figure: str
    description: str


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    name: str
    colour: int = 0
    hollow: bool = False


def legend(keys: Sequence[Key]) -> Markup:
    """What colours and filling mean."""
    return tag(
        "ul",
        (
            tag(
                "li",
                tag("svg", _circle("8", 8, k.colour, k.hollow), width=16, height=16, aria_hidden="true"),
                k.name,
            )
            for k in keys
        ),
        class_="legend",
    )


def strips(
    caption: Content, lines: Sequence[Line], axis: Axis, text: Callable[[float], str], keys: Sequence[Key],
    reference: float | None = None, shaded: bool = False,
) -> Markup:  # fmt: skip
    """One line of dots for each name.

    Args:
        caption: of the figure.
        lines: from top to bottom.
        axis: of all lines.
        text: how values are written at the ticks.
        keys: the legend.
        reference: a value with a stronger line.
        shaded: whether what lies below the reference has a shade: it is the wrong side.
    """
    grid = _vertical_grid(axis, reference, shaded)
    # Filled dots above, hollow ones below; all in the middle where there is one sort.
    upper, lower = (7, 17) if any(dot.hollow for line in lines for dot in line.dots) else (12, 12)
    rows = [
        tag(
            "div",
            tag("span", _breakable(line.name), class_="strip-name"),
            tag(
                "svg",
                grid,
                (
                    _circle(_across(axis, d.value), lower if d.hollow else upper, d.colour, d.hollow, d.title)
                    for d in line.dots
                ),
                width="100%",
                height=_ROW,
                role="img",
                aria_label=f"{line.name}: {line.description}",
            ),
            tag("span", line.figure, class_="strip-figure"),
            class_="strip",
        )
        for line in lines
    ]
    ticks = tag(
        "svg",
        (
            tag("text", text(v), x=_across(axis, v), y=13, text_anchor="middle", class_="tick")
            for v in axis.ticks(_TICKS)
        ),
        width="100%",
        height=18,
        aria_hidden="true",
        class_="ticks",
    )
    scale = tag(
        "div", tag("span", class_="strip-name"), ticks, tag("span", class_="strip-figure"), class_="strip"
    )
    return tag("figure", tag("figcaption", caption), legend(keys), rows, scale, class_="strips")


def ranked(
    caption: Content, series: Sequence[tuple[Key, Sequence[Dot]]], axis: Axis, text: Callable[[float], str],
    description: str, reference: float = 1.0,
) -> Markup:  # fmt: skip
    """All values in their order, from the smallest on the left to the largest on the right."""
    height = _RANKED
    at = {value: _height(axis, value, height) for value in (*axis.ticks(), reference)}
    parts = [
        tag(
            "rect",
            x="0",
            width="100%",
            y=f"{at[reference]:.1f}",
            height=f"{height - at[reference]:.1f}",
            class_="behind",
        )
    ]
    for value in axis.ticks():
        y = f"{at[value]:.1f}"
        parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    y = f"{at[reference]:.1f}"
    parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="axis"))
    for _, dots in series:
        ordered = sorted(dots, key=lambda dot: dot.value)
        for i, dot in enumerate(ordered):
            share = (i + 0.5) / len(ordered)
            place = f"{_MARGIN + share * (100 - 2 * _MARGIN):.2f}%"
            parts.append(_circle(place, _height(axis, dot.value, height), dot.colour, dot.hollow, dot.title))
    plot = tag("svg", parts, width="100%", height=height, role="img", aria_label=description)
    labels = tag(
        "svg",
        (
            tag("text", text(v), x="100%", y=f"{at[v] + 4:.1f}", text_anchor="end", class_="tick")
            for v in axis.ticks()
        ),
        width="100%",
        height=height,
        aria_hidden="true",
    )
    below = tag(
        "p", tag("span", "slowest case"), tag("span", "fastest case"), class_="ends", aria_hidden="true"
    )
    return tag(
        "figure",
        tag("figcaption", caption),
        legend([key for key, _ in series]),
        tag("div", labels, plot, class_="ranked"),
        below,
        class_="strips",
    )


def _breakable(name: str) -> list[Markup]:
    """A name that a narrow column breaks where its parts meet.

    Example:
        >>> joined(_breakable("linalg.solve_psd"))
        'linalg.<wbr>solve_<wbr>psd'
    """
    first, *others = re.split(r"(?<=[._])", name)
    return [escaped(first), *(joined(tag("wbr"), part) for part in others)]


def _vertical_grid(axis: Axis, reference: float | None, shaded: bool) -> list[Markup]:
    parts = []
    if reference is not None and shaded:
        parts.append(tag("rect", x="0", y=0, width=_across(axis, reference), height="100%", class_="behind"))
    for value in axis.ticks(_TICKS):
        x = _across(axis, value)
        parts.append(tag("line", x1=x, x2=x, y1=0, y2="100%", class_="grid"))
    if reference is not None:
        x = _across(axis, reference)
        parts.append(tag("line", x1=x, x2=x, y1=0, y2="100%", class_="axis"))
    return parts


def _circle(x: str, y: float, colour: int, hollow: bool, title: str = "") -> Markup:
    style = f"dot c{colour % COLOURS}{' hollow' if hollow else ''}"
    return tag("circle", tag("title", title) if title else None, cx=x, cy=f"{y:.1f}", r="3.6", class_=style)


def _across(axis: Axis, value: float) -> str:
    return f"{_MARGIN + axis.place(value) * (100 - 2 * _MARGIN):.2f}%"


def _height(axis: Axis, value: float, height: float) -> float:
    return height * (1 - axis.place(value))
