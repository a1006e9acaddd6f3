"""Figures of models, with matplotlib where it is installed: functions draw into axes and return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors

MODEL_COLOUR = "#1f5a99"
DATA_COLOUR = "#3c3c3c"
FORECAST_COLOUR = "#d1495b"
_BAND = 1.96
"""Standard deviations on each side that hold 95 %."""


def get_axes(axes: Any = None) -> Any:
    """``axes``, or those of a new figure; they can be shown (pyplot) and saved (``axes.figure.savefig``)."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise _errors.missing_dependency("plot()", "matplotlib", "models") from error
    return pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]


def style_axes(axes: Any) -> Any:
    """The look that all figures share."""
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def plot_learning_curve(history: Sequence[float], axes: Any = None) -> Any:
    """The loss over the moves of a fit."""
    axes = get_axes(axes)
    axes.plot(range(len(history)), history, color=MODEL_COLOUR, linewidth=1.6)
    axes.set_xlabel("moves")
    axes.set_ylabel("loss")
    return style_axes(axes)


def plot_band(
    axes: Any, x: Tensor, mean: Tensor, variance: Tensor, *, label: str = "mean", colour: str = MODEL_COLOUR
) -> None:
    """A line (n,) and the band around it that holds 95 %."""
    x, mean, deviation = (t.detach().cpu() for t in (x, mean, variance.clamp_min(0.0).sqrt()))
    limits = (mean - _BAND * deviation, mean + _BAND * deviation)
    axes.fill_between(x, *limits, color=colour, alpha=0.18, linewidth=0, label="95% band")
    axes.plot(x, mean, color=colour, linewidth=1.4, label=label)


def plot_points(axes: Any, x: Tensor, y: Tensor, *, label: str = "data", colour: str = DATA_COLOUR) -> None:
    """Observations (n,)."""
    size = 14.0 if len(x) < 300 else 5.0
    axes.scatter(
        x.detach().cpu(), y.detach().cpu(), s=size, color=colour, linewidths=0, zorder=3, label=label
    )


def make_grid(x: Tensor, count: int, beyond: float = 0.05) -> Tensor:
    """``count`` places from end to end of the data x (n,), and a part of its range beyond both ends."""
    low, high = float(x.min()), float(x.max())
    margin = beyond * (high - low) or 1.0
    return torch.linspace(low - margin, high + margin, count, dtype=x.dtype, device=x.device)


def make_input_grid(who: str, X: Tensor, margin: float) -> Tensor:
    """1000 places along the one column of X, and beyond it by that part of its range.

    Raises:
        ShapeError: X has more than one column.
    """
    if X.shape[1] != 1:
        raise _errors.ShapeError(f"{who}: one input can be drawn, the data have {X.shape[1]}.")
    return make_grid(X, 1000, margin)


def plot_fit(x: Tensor, mean: Tensor, variance: Tensor, data: tuple[Tensor, Tensor], axes: Any = None) -> Any:
    """A fit over one input: mean and band at the sorted places ``x``, and the data, all (n,)."""
    axes = get_axes(axes)
    plot_band(axes, x, mean, variance)
    plot_points(axes, *data)
    axes.legend(frameon=False)
    return style_axes(axes)
