"""Helpers that all plots share: figures without a window, and tick labels that do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lapgrad import _exceptions

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this many inches, which belongs to no window.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _exceptions.MissingDependencyError(
            "plots need matplotlib: pip install 'lapgrad[bench]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG and SVG under their names, and return the paths of the files."""
    written = []
    for name, figure in figures.items():
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


_LEAST_GAP = 0.13
"""Distance of two labels as a part of the whole range."""


def choose_sizes(sizes: Iterable[float]) -> list[float]:
    """Return the sizes whose labels fit on a logarithmic axis, in ascending order.

    The largest size is always chosen.

    Example:
        >>> choose_sizes([64, 128, 1000, 1024])
        [64, 128, 1024]
    """
    descending = sorted(set(sizes), reverse=True)
    span = math.log(descending[0] / descending[-1]) or 1.0
    chosen = descending[:1]
    for size in descending[1:]:
        if math.log(chosen[-1] / size) >= _LEAST_GAP * span:
            chosen.append(size)
    return chosen[::-1]


def label_sizes(axis: Axis, sizes: Iterable[float]) -> None:
    """Set the ticks of a logarithmic axis to the sizes that were measured, as far as labels fit."""
    from matplotlib.ticker import NullLocator

    chosen = choose_sizes(sizes)
    axis.set_ticks(chosen, [f"{size:g}" for size in chosen])
    axis.set_minor_locator(NullLocator())


def label_round_values(axis: Axis, format_value: Callable[[float], str] = "{:g}".format) -> None:
    """Set the ticks of a logarithmic axis to round values, labelled by `format_value`.

    Call this after the data are drawn. matplotlib labels powers of ten alone: a plot that spans less than a
    decade could have no label at all.
    """
    from matplotlib.axis import XAxis
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    # Labels side by side need more room than labels one above the other.
    most = 2.3 if isinstance(axis, XAxis) else 3.5
    digits = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < most else (1,)
    axis.set_major_locator(LogLocator(subs=digits, numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value)))
    axis.set_minor_locator(NullLocator())
