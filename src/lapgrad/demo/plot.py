"""The figure of the demonstration: the fit, the forecast close up, and the season that was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad.demo.carbon import FIRST_TEST_YEAR, Series
from lapgrad.demo.model import predict, predict_season
from lapgrad.models import GPRegression

_MODEL = "#1f5a99"
_TRAIN = "#3c3c3c"
_TEST = "#d1495b"
_SEASONS = ("#8fb8de", _MODEL)


def draw(model: GPRegression, train: Series, test: Series, path: Path) -> None:
    """Write the figure; the suffix of the path is the format (.png, .pdf, .svg)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(11, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.25, 1))
    whole, close, season = (
        figure.add_subplot(grid[0, :]),
        figure.add_subplot(grid[1, :2]),
        figure.add_subplot(grid[1, 2]),
    )
    figure.suptitle(
        "CO₂ at Mauna Loa: Gaussian process regression with lapgrad", fontsize=14, fontweight="bold"
    )
    _draw_fit(whole, model, train, test, float(train.years[0]), size=5)
    whole.axvline(FIRST_TEST_YEAR, color="0.55", linewidth=1, linestyle=(0, (4, 3)))
    for text, side, shift in (("learned from", "right", -0.4), ("forecast", "left", 0.4)):
        at = (FIRST_TEST_YEAR + shift, 0.04)
        whole.text(*at, text, transform=whole.get_xaxis_transform(), ha=side, color="0.35")
    whole.legend(loc="upper left", frameon=False)
    _draw_fit(close, model, train, test, FIRST_TEST_YEAR - 2, size=12)
    close.axvline(FIRST_TEST_YEAR, color="0.55", linewidth=1, linestyle=(0, (4, 3)))
    close.set_title("the forecast, close up", loc="left", fontsize=11)
    _draw_season(season, model)
    for axes in (whole, close, season):
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_fit(axes: Any, model: GPRegression, train: Series, test: Series, start: float, size: float) -> None:
    """Draw mean, 95% band and data from the year `start` on."""
    end = float(test.years[-1])
    years = torch.linspace(start, end, 2000, dtype=torch.float64)
    mean, deviation = predict(model, years)
    band = (mean - 1.96 * deviation, mean + 1.96 * deviation)
    axes.fill_between(years, *band, color=_MODEL, alpha=0.18, linewidth=0, label="95% band")
    axes.plot(years, mean, color=_MODEL, linewidth=1.1, label="mean")
    for series, colour, text in ((train, _TRAIN, "training months"), (test, _TEST, "test months")):
        shown = series.years >= start
        points = series.years[shown], series.ppm[shown]
        axes.scatter(*points, s=size, color=colour, linewidths=0, zorder=3, label=text)
    axes.set_xlim(start, end + 0.2)
    axes.set_ylabel("ppm")


def _draw_season(axes: Any, model: GPRegression) -> None:
    """Draw the seasonal part of the mean in the first and the last year of the training data."""
    months: Tensor = torch.linspace(0, 1, 200, dtype=torch.float64)
    for year, colour in zip((1959, FIRST_TEST_YEAR - 1), _SEASONS, strict=True):
        axes.plot(
            12 * months, predict_season(model, year + months), color=colour, linewidth=2, label=str(year)
        )
    axes.set_xticks([i + 0.5 for i in range(12)], list("JFMAMJJASOND"))
    axes.set_xlim(0, 12)
    axes.set_ylabel("ppm")
    axes.set_title("the season it learned", loc="left", fontsize=11)
    axes.legend(frameon=False)
