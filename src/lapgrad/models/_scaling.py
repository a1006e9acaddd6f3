"""Standardised data: columns shifted to mean 0 and scaled to variance 1, unless they are constant."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad.models import _checks, _plots
from lapgrad.models._prediction import Prediction


class StandardisedRegression(abc.ABC):
    """A mixin for models of inputs X and targets y that can standardise both.

    Attributes:
        X, y: (n, d) and (n, k), the data as given.
        x_shift, x_scale: (d,), subtracted from the columns of X, and divided by.
        y_shift, y_scale: (k,) and (), the same for y: all targets share one scale.
        normalise: Whether the data are standardised.
        vector: Whether y was given as (n,).
    """

    X: Tensor
    y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    normalise: bool
    vector: bool

    @abc.abstractmethod
    def predict(self, X_new: Tensor, *, noise: bool = False) -> Prediction:
        """Return the distribution of f, or of observations, at new inputs."""

    def plot(self, axes: Any = None, *, output: int = 0, noise: bool = True, margin: float = 0.1) -> Any:
        """Plot mean, 95 % band and data over one input, with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.
            output: Which output, if there are several.
            noise: Plot the band of observations, else that of f.
            margin: How far to plot beyond the data, relative to their range.

        Returns:
            The axes.

        Raises:
            ShapeError: There is more than one input.
        """
        x = _plots.make_input_grid(f"{type(self).__name__}.plot", self.X, margin)
        with torch.no_grad():
            mean, variance = self.predict(x, noise=noise)
        mean, variance = (values[:, output] if values.dim() > 1 else values for values in (mean, variance))
        return _plots.plot_fit(x, mean, variance, (self.X[:, 0], self.y[:, output]), axes)

    def _scale_inputs(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale if self.normalise else X

    def _scale_targets(self, y: Tensor) -> Tensor:
        return (y - self.y_shift) / self.y_scale if self.normalise else y

    def _check_new_inputs(self, function: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{function}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X=self.X, X_new=X_new)
        return X_new


def register_scaling(
    module: nn.Module, name: str, values: Tensor, wanted: bool, *, pooled: bool = False
) -> None:
    """Register the buffers ``{name}_shift`` and ``{name}_scale`` for the columns of ``values``.

    With ``pooled`` all columns share one scale, the root mean square of theirs.
    """
    shift, scale = compute_shift_and_scale(values, wanted)
    module.register_buffer(f"{name}_shift", shift)
    module.register_buffer(f"{name}_scale", scale.square().mean().sqrt() if pooled else scale)


def compute_shift_and_scale(X: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (d,) of the columns of X (n, d); 0 and 1 if not ``wanted``.

    The scale of a column that is constant up to rounding is 1.
    """
    if not wanted:
        return X.new_zeros(X.shape[1]), X.new_ones(X.shape[1])
    return X.mean(0), compute_spread(X)


def compute_scales_of_mean(inputs: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """Return the size of typical changes of the constant and slopes of a mean function, for its optimiser."""
    with torch.no_grad():
        deviation = compute_spread(outputs).square().mean().sqrt()
        return {"raw_constant": deviation, "raw_slope": (deviation / compute_spread(inputs))[:, None]}


def compute_spread(X: Tensor) -> Tensor:
    """Return the standard deviation of each column of X (n, d), and 1 where it is 0 up to rounding."""
    deviation = X.std(0, correction=0)
    rounding = 10.0 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    return torch.where(deviation > rounding, deviation, torch.ones_like(deviation))


def subtract_mean(y: Tensor) -> Tensor:
    """Return y (n, k) minus the mean of each column; exactly 0 in columns of equal numbers."""
    return (y - y.mean(0)) * (y != y[:1]).any(0)


def choose_noise(variance: Tensor, noise_floor: float | None) -> Tensor:
    """Return the noise to start from: a tenth of the variance of the targets, or twice a higher floor."""
    start = 0.1 * variance
    return start if noise_floor is None or start > noise_floor else torch.full_like(start, 2.0 * noise_floor)
