"""Plots of models with matplotlib, if it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions

MODEL_COLOUR = "#1f5a99"
DATA_COLOUR = "#3c3c3c"
FORECAST_COLOUR = "#d1495b"
_BAND = 1.96
"""95 % of a normal distribution lie within this many standard deviations of its mean."""


def get_axes(axes: Any = None) -> Any:
    """Return ``axes``, or those of a new figure if it is None."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise _errors.missing_dependency("plot()", "matplotlib", "models") from error
    return pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]


def style_axes(axes: Any) -> Any:
    """Apply the style of all plots, and return the axes."""
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def plot_learning_curve(history: Sequence[float], axes: Any = None) -> Any:
    """Plot the loss after each move of a fit, and return the axes."""
    axes = get_axes(axes)
    axes.plot(range(len(history)), history, color=MODEL_COLOUR, linewidth=1.6)
    axes.set_xlabel("moves")
    axes.set_ylabel("loss")
    return style_axes(axes)


def plot_band(
    axes: Any, x: Tensor, mean: Tensor, variance: Tensor, *, label: str = "mean", colour: str = MODEL_COLOUR
) -> None:
    """Plot a line (n,) and its 95 % band."""
    x, mean, deviation = (t.detach().cpu() for t in (x, mean, variance.clamp_min(0.0).sqrt()))
    limits = (mean - _BAND * deviation, mean + _BAND * deviation)
    axes.fill_between(x, *limits, color=colour, alpha=0.18, linewidth=0, label="95% band")
    axes.plot(x, mean, color=colour, linewidth=1.4, label=label)


def plot_points(axes: Any, x: Tensor, y: Tensor, *, label: str = "data", colour: str = DATA_COLOUR) -> None:
    """Plot observations (n,) as dots."""
    size = 14.0 if len(x) < 300 else 5.0
    axes.scatter(
        x.detach().cpu(), y.detach().cpu(), s=size, color=colour, linewidths=0, zorder=3, label=label
    )


def make_grid(x: Tensor, count: int, beyond: float) -> Tensor:
    """Return ``count`` points over the range of x (n,), widened by the fraction ``beyond`` at both ends."""
    low, high = float(x.min()), float(x.max())
    margin = beyond * (high - low) or 1.0
    return torch.linspace(low - margin, high + margin, count, dtype=x.dtype, device=x.device)


def make_input_grid(who: str, X: Tensor, margin: float) -> Tensor:
    """Return 1000 points over the range of the one column of X, widened by the fraction ``margin``.

    Raises:
        ShapeError: X has more than one column.
    """
    check_one_input(who, X)
    return make_grid(X, 1000, margin)


def check_one_input(who: str, X: Tensor) -> None:
    """Raise a ``ShapeError`` if X (n, d) has more than one column."""
    if X.shape[1] != 1:
        raise _exceptions.ShapeError(f"{who}: one input can be drawn, the data have {X.shape[1]}.")


def plot_fit(x: Tensor, mean: Tensor, variance: Tensor, data: tuple[Tensor, Tensor], axes: Any = None) -> Any:
    """Plot mean and 95 % band at the sorted inputs x (n,), with the data, and return the axes."""
    axes = get_axes(axes)
    plot_band(axes, x, mean, variance)
    plot_points(axes, *data)
    axes.legend(frameon=False)
    return style_axes(axes)
