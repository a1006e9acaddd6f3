"""Line plots as inline SVG. Colours are classes of the style sheet, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lapgrad.report.axes import Axis
from lapgrad.report.markup import Content, Markup, tag

_WIDTH, _HEIGHT = 360.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 26.0, 38.0
_MARK = 3.6

Text = Callable[[float], str]
"""How a value is written at a tick."""

COLOURS = 8
"""Classes c0, c1, ... of the style sheet."""


@dataclass(frozen=True)
class Series:
    """Points that are joined by a line.

    Attributes:
        name: in the legend and in the description for those who cannot see the plot.
        points: x and y, in the order of x.
        colour: number of a class; see `COLOURS`. None: grey, for figures of others.
        dashed: the line is dashed, and its marks are hollow.
        joined: whether there is a line.
        errors: for each point its lower and upper end, or None.
        marked: whether the points have marks.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int | None = 0
    dashed: bool = False
    joined: bool = True
    errors: Sequence[tuple[float, float] | None] = ()
    marked: bool = True


@dataclass(frozen=True)
class Scale:
    """An axis: its title (a unit where it is vertical), its ticks (None: round values) and their text."""

    title: str
    axis: Axis
    text: Text
    ticks: Sequence[float] | None = None

    def places(self) -> Sequence[float]:
        """Values of the ticks."""
        return self.axis.ticks() if self.ticks is None else self.ticks


def panel(title: str, series: Sequence[Series], x: Scale, y: Scale) -> Markup:
    """One plot with its title in it, of a size that a phone shows without scaling it down."""
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines = [*_grid(x, y), *(part for one in series for part in _drawn(one, x.axis, y.axis))]
    return tag(
        "svg",
        tag("text", title, tag("tspan", f" {y.title}", class_="unit"), x=_LEFT, y=15, class_="plot-title"),
        lines,
        tag("text", x.title, x=_short(middle), y=_HEIGHT - 5, text_anchor="middle", class_="axis-title"),
        viewbox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=f"{title} {y.title} over {x.title}. {_described(series, x, y)}",
        class_="panel",
    )


def legend(series: Sequence[Series]) -> Markup:
    """What colours and dashes mean, above plots that share them."""
    return tag("ul", (tag("li", _sample(one), one.name) for one in series), class_="legend")


def panels(caption: Content, legend_of: Sequence[Series], drawn: Sequence[Markup]) -> Markup:
    """A figure of several plots, as many beside each other as there is room for."""
    return tag(
        "figure",
        tag("figcaption", caption),
        legend(legend_of) if legend_of else None,
        tag("div", drawn, class_="panels"),
    )


def _grid(x: Scale, y: Scale) -> list[Markup]:
    parts = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in y.places():
        at = _short(_y(y.axis, value))
        parts.append(tag("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(
            tag("text", y.text(value), x=_LEFT - 6, y=_short(float(at) + 4), text_anchor="end", class_="tick")
        )
    for value in x.places():
        at = _short(_x(x.axis, value))
        parts.append(tag("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="grid"))
        parts.append(tag("text", x.text(value), x=at, y=bottom + 15, text_anchor="middle", class_="tick"))
    parts.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    return parts


def _drawn(series: Series, x: Axis, y: Axis) -> list[Markup]:
    style = _style(series)
    places = [(_x(x, a), _y(y, b)) for a, b in series.points]
    parts = []
    if series.joined and len(places) > 1:
        path = " ".join(f"{_short(a)},{_short(b)}" for a, b in places)
        parts.append(tag("polyline", points=path, class_=f"line {style}{' dashed' if series.dashed else ''}"))
    for (a, _), ends in zip(places, series.errors, strict=False):
        if ends is not None:
            low, high = (_short(_y(y, end)) for end in ends)
            parts.append(tag("line", x1=_short(a), x2=_short(a), y1=low, y2=high, class_=f"error {style}"))
    if series.marked:
        parts += [_shaped(a, b, series) for a, b in places]
    return parts


def _shaped(x: float, y: float, series: Series) -> Markup:
    """Circle, square, triangle, diamond by colour."""
    style = f"mark {_style(series)}{' hollow' if series.dashed else ''}"
    r = _MARK
    corners = {
        1: ((-r, -r), (r, -r), (r, r), (-r, r)),
        2: ((0, -1.25 * r), (1.2 * r, r), (-1.2 * r, r)),
        3: ((0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)),
        4: ((0, 1.25 * r), (1.2 * r, -r), (-1.2 * r, -r)),
    }
    shape = -1 if series.colour is None else series.colour % 5
    if shape not in corners:
        return tag("circle", cx=_short(x), cy=_short(y), r=_short(r), class_=style)
    path = " ".join(f"{_short(x + dx)},{_short(y + dy)}" for dx, dy in corners[shape])
    return tag("polygon", points=path, class_=style)


def _sample(series: Series) -> Markup:
    """A short line with a mark, for the legend."""
    dashed = " dashed" if series.dashed else ""
    line = tag("line", x1=1, x2=27, y1=8, y2=8, class_=f"line {_style(series)}{dashed}")
    return tag(
        "svg",
        line if series.joined else None,
        _shaped(14.0, 8.0, series) if series.marked else None,
        width=28,
        height=16,
        aria_hidden="true",
    )


def _described(series: Sequence[Series], x: Scale, y: Scale) -> str:
    """First and last point of every line."""
    texts = []
    for one in series:
        if one.points:
            ends = [one.points[0], *([one.points[-1]] if len(one.points) > 1 else [])]
            shown = ", ".join(f"{y.text(b)} at {x.text(a)}" for a, b in ends)
            texts.append(f"{one.name}: {shown}.")
    return " ".join(texts)


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _style(series: Series) -> str:
    return "grey" if series.colour is None else f"c{series.colour % COLOURS}"


def _short(value: float) -> str:
    """One digit after the point is finer than a screen shows."""
    return f"{value:.1f}".removesuffix(".0")
