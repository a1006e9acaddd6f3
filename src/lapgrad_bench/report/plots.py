"""Plots of the page, each one panel that a phone shows without scaling it down."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapgrad_bench.bench.models import plots as model_plots
from lapgrad_bench.common import plotting
from lapgrad_bench.report import quantities
from lapgrad_bench.report.findings import Comparison, Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 4.6, 3.1
"""Inches, of 72 units of SVG: a panel is as wide as the page on a phone, where letters keep their size."""

_LEGEND_LINE = 0.21
_CHARACTER = 0.078
"""Inches: the height of a line of a legend, and a width that no letter exceeds on average."""

_LONGEST_NAME, _LONGEST_TITLE = 30, 40
"""Characters."""

GREY = "#808080"
_SHADE = "#d0453c"
_DTYPES = {"float64": "#0b62c4", "float32": "#d1600a"}
_PALETTE = ("#0b62c4", "#d1600a", "#7b3fb8", "#00806a", "#b3266e", "#6d6300", "#0087a8", "#8a4b2a")


@dataclass(frozen=True)
class Plot:
    """A figure, and what it shows in words."""

    figure: Figure
    description: str


@dataclass(frozen=True)
class PlotGroup:
    """Plots that share a caption and a legend."""

    plots: Sequence[Plot]
    legend: Figure | None = None


@dataclass(frozen=True)
class Series:
    """Points of one name; `style` is a format of matplotlib, such as "o-"."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str
    style: str = "o-"


def get_color(i: int) -> str:
    """Return the i-th colour for things that have none of their own."""
    return _PALETTE[i % len(_PALETTE)]


def make_panel() -> tuple[Figure, Axes]:
    """Return an empty figure of the size of a panel, and its axes."""
    figure = plotting.make_figure(_WIDTH, _HEIGHT)
    # Fixed margins: a layout that measures every label takes half of the time of drawing.
    figure.set_layout_engine("none")
    return figure, figure.subplots(gridspec_kw={"left": 0.17, "right": 0.98, "bottom": 0.16, "top": 0.91})


def make_legend(handles: Iterable[Any]) -> Figure:
    """Return a figure that holds the legend alone; of entries with the same label only the first counts."""
    entries: dict[str, Any] = {}
    for handle in handles:
        entries.setdefault(str(handle.get_label()), handle)
    longest = max(len(shorten(label)) for label in entries)
    columns = max(1, min(4, len(entries), int(_WIDTH / (0.5 + _CHARACTER * longest))))
    figure = plotting.make_figure(_WIDTH, _LEGEND_LINE * -(-len(entries) // columns) + 0.06)
    labels = [shorten(label) for label in entries]
    figure.legend(
        list(entries.values()),
        labels,
        loc="upper left",
        ncols=columns,
        frameon=False,
        borderaxespad=0,
        fontsize=10,
    )
    return figure


def make_group(plots: Sequence[Plot]) -> PlotGroup | None:
    """Return the plots with a legend of all that they show; None where there are no plots."""
    handles = [
        handle
        for plot in plots
        for axes in plot.figure.axes
        for handle in axes.get_legend_handles_labels()[0]
    ]
    return PlotGroup(plots, make_legend(handles) if handles else None) if plots else None


def finish_plot(figure: Figure) -> Plot:
    """Return the figure with a description: its title, and both ends of every line that has a name."""
    from matplotlib.lines import Line2D

    (axes,) = figure.axes
    sentences = [f"{axes.get_title(loc='left')}, {axes.get_ylabel()} over {axes.get_xlabel()}."]
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
        line: Any = handle if isinstance(handle, Line2D) else handle.get_children()[0]
        points = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        ends = dict.fromkeys((points[0], points[-1]))
        texts = [f"{quantities.format_number(float(y), 3)} at {x:g}" for x, y in ends]
        sentences.append(f"{name}: {', '.join(texts)}.")
    return Plot(figure, " ".join(sentences))


def plot_series(title: str, across: str, series: Sequence[Series], *, has_log_sizes: bool = False) -> Plot:
    """Return a plot of several series over a few numbers, with a tick for each number.

    Args:
        title: Stands above the plot.
        across: What the horizontal axis shows.
        series: At least one, each with at least one point.
        has_log_sizes: Whether the horizontal axis is logarithmic.
    """
    figure, axes = make_panel()
    for one in series:
        axes.plot(*zip(*one.points, strict=True), one.style, color=one.color, ms=4.5, lw=1.6, label=one.name)
    places = sorted({x for one in series for x, _ in one.points})
    if has_log_sizes:
        axes.set_xscale("log")
        axes.margins(x=0.12)
        plotting.label_sizes(axes.xaxis, places)
    else:
        axes.set_xticks(places[:: -(-len(places) // 10)])
    axes.yaxis.set_major_formatter(lambda value, _: quantities.format_number(value, 3))
    axes.set_title(shorten(title, _LONGEST_TITLE))
    axes.set_xlabel(across)
    return finish_plot(figure)


def plot_sorted_speedups(compared: Sequence[Comparison], names: Mapping[str, str]) -> PlotGroup:
    """Return a plot of the speed-ups of all cases in ascending order, one colour per peer.

    Args:
        compared: At least one comparison.
        names: The name of each peer in the legend.
    """
    figure, axes = make_panel()
    for i, (peer, name) in enumerate(names.items()):
        ratios = sorted(c.ratio for c in compared if c.peer == peer)
        places = [(k + 0.5) / len(ratios) for k in range(len(ratios))]
        axes.plot(places, ratios, "o", ms=3, color=_get_peer_color(peer, i), label=f"against {name}")
    axes.set_yscale("log")
    _shade_below_one(axes, axes.axhspan, axes.axhline, axes.get_ylim())
    plotting.label_round_values(axes.yaxis, "{:g}×".format)
    axes.set_title("speed-up")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 1], ["slowest case", "fastest case"])
    first, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    every = [c.ratio for c in compared]
    least, most, middle = (quantities.format_ratio(f(every)) for f in (min, max, statistics.median))
    words = (
        f"Speed-up of lapgrad over {', '.join(names)} in {quantities.format_count(len(every), 'case')}, "
        f"sorted: from {least} to {most}, median {middle}."
    )
    return PlotGroup([Plot(figure, words)], make_legend(axes.get_lines()[: len(names)]))


def plot_speedups_by_operator(tally: Tally, title: str) -> Plot:
    """Return a plot with a line of dots for each operator, sorted by the median, which is at the right."""
    medians = tally.compute_medians()
    names = sorted(medians, key=lambda name: -medians[name])
    dots: dict[str, _Dots] = {}
    phases = {c.case.phase for c in tally.comparisons}
    backward = ", ".join(phase for phase in ("backward", "step") if phase in phases)
    for comparison in tally.comparisons:
        case = comparison.case
        color, is_forward = _DTYPES.get(case.dtype, GREY), case.phase == "forward"
        label = f"{case.dtype} {'forward' if is_forward else backward}"
        own = dots.setdefault(label, _Dots([], [], color, is_forward))
        own.values.append(comparison.ratio)
        own.lines.append(names.index(case.subject))
    figure, axes = _draw_dots(names, [quantities.format_ratio(medians[name]) for name in names], dots)
    axes.set_xscale("log")
    _shade_below_one(axes, axes.axvspan, axes.axvline, axes.get_xlim())
    plotting.label_round_values(axes.xaxis, "{:g}×".format)
    axes.set_title(shorten(title, _LONGEST_TITLE))
    ratios = {name: [c.ratio for c in tally.comparisons if c.case.subject == name] for name in names}
    words = [
        f"{name}: {quantities.format_ratio(min(own))} to {quantities.format_ratio(max(own))}, median "
        f"{quantities.format_ratio(medians[name])}, {quantities.format_count(len(own), 'case')}."
        for name, own in ratios.items()
    ]
    return Plot(figure, " ".join([f"Speed-up {title}.", *words]))


def plot_fractions(fractions: Mapping[str, Mapping[str, float]], title: str) -> Plot:
    """Return a plot with a line of dots for each name, one dot for each library.

    Args:
        fractions: By name from top to bottom, and by library.
        title: Stands above the plot.
    """
    dots: dict[str, _Dots] = {}
    for i, own in enumerate(fractions.values()):
        for library, fraction in own.items():
            found = dots.setdefault(library, _Dots([], [], _get_peer_color(library, len(dots)), True))
            found.values.append(fraction)
            found.lines.append(i)
    first = [quantities.format_percent(next(iter(own.values()))) for own in fractions.values()]
    figure, axes = _draw_dots(list(fractions), first, dots)
    axes.set_xlim(left=0)
    axes.axvline(1, color="#000000", lw=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.locator_params(axis="x", nbins=3)
    axes.set_title(shorten(title, _LONGEST_TITLE))
    words = []
    for name, own in fractions.items():
        parts = [f"{library} {quantities.format_percent(part)}" for library, part in own.items()]
        words.append(f"{name}: {', '.join(parts)}.")
    return Plot(figure, " ".join(words))


def shorten(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name that fits into a plot: a long one loses its end.

    Example:
        >>> shorten("linalg.solve_psd", longest=8)
        'linalg.…'
    """
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


@dataclass(frozen=True)
class _Dots:
    """Dots of one colour: their values, and the number of the line each is on."""

    values: list[float]
    lines: list[int]
    color: str
    is_filled: bool


def _draw_dots(
    names: Sequence[str], figures: Sequence[str], dots: Mapping[str, _Dots]
) -> tuple[Figure, Axes]:
    """Return a figure with a line of dots for each name, and a text at the right end of each line.

    Where there are filled and hollow dots, the filled ones lie a little higher.
    """
    figure = plotting.make_figure(_WIDTH, 0.8 + 0.26 * len(names))
    axes = figure.subplots()
    shift = 0.16 if len({own.is_filled for own in dots.values()}) > 1 else 0.0
    for label, own in dots.items():
        axes.plot(
            own.values,
            [line - shift if own.is_filled else line + shift for line in own.lines],
            "o",
            ms=4,
            color=own.color,
            alpha=0.8,
            markerfacecolor=own.color if own.is_filled else "none",
            label=label,
        )
    axes.set_yticks(range(len(names)), [shorten(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    at_right = axes.secondary_yaxis("right")
    at_right.set_yticks(range(len(names)), figures)
    at_right.spines["right"].set_visible(False)
    for axis in (axes, at_right):
        axis.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure, axes


def _shade_below_one(
    axes: Axes, draw_span: Callable[..., Any], draw_line: Callable[..., Any], limits: tuple[float, float]
) -> None:
    """Draw a line at 1, and shade the side where lapgrad is slower."""
    low, high = min(limits[0], 0.9), max(limits[1], 1.1)
    draw_span(low, 1, color=_SHADE, alpha=0.1, lw=0)
    draw_line(1, color="#000000", lw=1)
    (axes.set_ylim if draw_span == axes.axhspan else axes.set_xlim)(low, high)


def _get_peer_color(library: str, i: int) -> str:
    return model_plots.COLORS.get(library.lower(), get_color(i))
