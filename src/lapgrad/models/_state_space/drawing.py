"""Plots of state space models: data, signal and forecast; diagnostics of residuals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.models import _plots
from lapgrad.models._prediction import Prediction
from lapgrad.models._state_space.summary import compute_autocorrelations

_BAND = 1.96


def draw_series(
    axes: Any, x: Any, y: Tensor, signal: Prediction, ahead: Prediction | None, labels: tuple[str, str]
) -> Any:
    """Draw observations (T,), the smoothed signal and a forecast with 95% bands; x (T + steps,) may be dates.

    Args:
        axes: Axes of matplotlib, or None: new ones.
        x: Coordinates of all steps.
        y: (T,), the observations.
        signal: Smoothed mean and variance (T,).
        ahead: Forecast (steps,), or None.
        labels: Of both axes.
    """
    axes = _plots.get_axes(axes)
    _draw_points(axes, x[: len(y)], y)
    _draw_band(axes, x[: len(y)], signal, "smoothed signal", _plots.MODEL_COLOUR)
    if ahead is not None:
        _draw_band(axes, x[len(y) :], ahead, "forecast", _plots.FORECAST_COLOUR)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.legend(frameon=False)
    return _plots.style_axes(axes)


def _draw_points(axes: Any, x: Any, y: Tensor) -> None:
    size = 14.0 if len(y) < 300 else 5.0
    axes.scatter(x, y.cpu().numpy(), s=size, color=_plots.DATA_COLOUR, linewidths=0, zorder=3, label="data")


def _draw_band(axes: Any, x: Any, found: Prediction, label: str, colour: str) -> None:
    mean, deviation = (t.detach().cpu().numpy() for t in (found.mean, found.variance.clamp_min(0.0).sqrt()))
    axes.fill_between(
        x, mean - _BAND * deviation, mean + _BAND * deviation, color=colour, alpha=0.18, linewidth=0,
        label=f"95% band of the {label}",
    )  # fmt: skip
    axes.plot(x, mean, color=colour, linewidth=1.4, label=label)


def draw_diagnostics(x: Any, residuals: Tensor, lags: int, axes: Any = None) -> Any:
    """Draw standardised residuals (T,): over time, their histogram, their quantiles, their autocorrelations.

    Args:
        x: (T,), coordinates of the steps; may be dates.
        residuals: May have NaN.
        lags: How many autocorrelations.
        axes: Four axes of matplotlib, or None: new ones.

    Returns:
        The axes, as an array (2, 2), or as they were passed.
    """
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise _errors.missing_dependency("plot_diagnostics()", "matplotlib", "models") from error
        axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")[1]
    over_time, histogram, quantiles, correlogram = np.asarray(axes, dtype=object).flatten()
    series = residuals.double().cpu().numpy()
    z = series[~np.isnan(series)]
    n = len(z)
    over_time.axhline(0.0, color="0.6", linewidth=0.8)
    over_time.plot(x, series, color=_plots.MODEL_COLOUR, linewidth=1.0, marker=".", markersize=3)
    over_time.set(title="standardised residuals", xlabel="time", ylabel="residual")
    histogram.hist(z, bins=max(8, round(math.sqrt(n))), density=True, color="0.8", label="residuals")
    grid = np.linspace(min(-3.5, z.min()), max(3.5, z.max()), 200)
    density = np.exp(-0.5 * grid**2) / math.sqrt(2 * math.pi)
    histogram.plot(grid, density, color=_plots.FORECAST_COLOUR, label="N(0, 1)")
    histogram.set(title="distribution", xlabel="residual", ylabel="density")
    histogram.legend(frameon=False)
    positions = torch.from_numpy((np.arange(n) + 0.5) / n)
    normal = (math.sqrt(2) * torch.erfinv(2 * positions - 1)).numpy()
    quantiles.plot(normal, normal, color="0.6", linewidth=0.8, label="equal")
    quantiles.scatter(normal, np.sort(z), s=8, color=_plots.MODEL_COLOUR, label="residuals")
    quantiles.set(title="quantiles", xlabel="of N(0, 1)", ylabel="of the residuals")
    quantiles.legend(frameon=False)
    lags = max(1, min(lags, n - 2))
    found = compute_autocorrelations(torch.from_numpy(z), lags).numpy()
    limit = _BAND / math.sqrt(n)
    correlogram.axhspan(-limit, limit, color="0.9", label="95% band of white noise")
    correlogram.vlines(np.arange(1, lags + 1), 0.0, found, color=_plots.MODEL_COLOUR)
    correlogram.scatter(np.arange(1, lags + 1), found, s=12, color=_plots.MODEL_COLOUR, label="residuals")
    tallest = 1.6 * max(limit, float(np.abs(found).max()))
    correlogram.set(
        title="autocorrelations", xlabel="lag", ylabel="autocorrelation", ylim=(-tallest, tallest)
    )
    correlogram.legend(frameon=False)
    for one in (over_time, histogram, quantiles, correlogram):
        _plots.style_axes(one)
    return axes
