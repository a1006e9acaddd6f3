"""State space models that plot data, forecasts and diagnostics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._arrays.conversion import Origin
from lapgrad.models._prediction import Prediction
from lapgrad.models._products import multiply
from lapgrad.models._state_space import drawing as _drawing
from lapgrad.models._state_space import reading as _reading

if TYPE_CHECKING:
    from lapgrad.models._state_space.matrices import Matrices
    from lapgrad.models.criteria.kalman_smoother import Smoothed


class PlottedModel:
    """Mixed into a model with series and their labels."""

    y: Tensor
    lengths: Tensor
    gaps: Tensor | None
    labels: Any
    origin: Origin
    single: bool

    if TYPE_CHECKING:

        def compute_residuals(self) -> Tensor: ...
        def smooth(self) -> Smoothed: ...
        def matrices(self, times: int | None = None) -> Matrices: ...
        def _forecast(self, steps: int, noise: bool) -> tuple[Tensor, Tensor]: ...
        def use_inputs(self, who: str, X: Any, steps: int) -> AbstractContextManager[Any]: ...

    def plot_diagnostics(self, *, series: int = 0, lags: int = 24, axes: Any = None) -> Any:
        """Plot residuals over time, their distribution, quantiles and autocorrelations (needs matplotlib).

        Args:
            series: Which series.
            lags: How many autocorrelations.
            axes: Four axes of matplotlib to draw into; None: new ones.

        Returns:
            The axes, (2, 2).
        """
        self._check_one_value("plot_diagnostics")
        length = int(self.lengths[series])
        one = self.compute_residuals()[series, :length, 0]
        return _drawing.draw_diagnostics(self._get_coordinates(length, 0), one, lags, axes)

    def plot(
        self, steps: int = 0, *, X: Any = None, series: int = 0, times: Any = None, axes: Any = None
    ) -> Any:
        """Plot the data of one series, the smoothed signal and a forecast, with 95% bands (needs matplotlib).

        Args:
            steps: Steps of the forecast.
            X: Inputs at these steps, as for ``forecast``.
            series: Which series.
            times: (T + steps,), coordinates of the time axis; None: those of the data, else 0, 1, 2, ...
            axes: Axes of matplotlib to draw into; None: new ones.

        Returns:
            The axes.
        """
        self._check_one_value("plot")
        length = int(self.lengths[series])
        x = self._get_coordinates(length, steps) if times is None else torch.as_tensor(times)
        if len(x) < length + steps:
            raise _exceptions.ShapeError(
                f"{type(self).__name__}.plot: times must have {length + steps} entries, got {len(x)}."
            )
        found, block = self.smooth(), self.matrices().block
        mean, covariance = (v[None] if self.single else v for v in (found.mean, found.covariance))
        B = block.B.detach()
        signal = multiply(B, mean[..., None])[..., 0][series, :length, 0]
        if block.observation_offset is not None:
            offset = block.observation_offset.detach().expand(len(self.y), self.y.shape[1], 1)
            signal = signal + offset[series, :length, 0]
        smoothed = Prediction(signal, multiply(B, covariance, B.mT)[series, :length, 0, 0])
        ahead = None
        if steps:
            who = f"{type(self).__name__}.plot"
            with torch.no_grad(), self.use_inputs(who, X, steps):
                later, spread = self._forecast(steps, True)
            ahead = Prediction(later[series, :, 0], spread[series, :, 0, 0])
        name = self.origin.columns[0] if self.origin.columns else None
        labels = ("time" if self.labels is not None or times is not None else "step", str(name or "value"))
        return _drawing.draw_series(
            axes, x[: length + steps], self.y[series, :length, 0], smoothed, ahead, labels
        )

    def _get_coordinates(self, length: int, steps: int) -> Any:
        """Return the coordinates of the time axis, dates where the data have them."""
        return _reading.get_plot_coordinates(self.labels, length, steps, self.gaps)

    def _check_one_value(self, method: str) -> None:
        if self.y.shape[-1] > 1:
            raise _exceptions.ShapeError(
                f"{type(self).__name__}.{method}: only series of one value at each time."
            )
