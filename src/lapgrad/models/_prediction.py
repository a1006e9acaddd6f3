"""The normal distributions that models predict, and their log densities."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

_LOG_2_PI = math.log(2.0 * math.pi)


class Prediction(NamedTuple):
    """A normal distribution over values at n new inputs.

    Attributes:
        mean: (n,), or (n, k) for k targets.
        variance: (n,), shared by the targets; with ``full_cov`` the covariance (n, n). (n, k) of models
            whose targets differ in it (``DeepGPRegression``).
    """

    mean: Tensor
    variance: Tensor

    @property
    def covariance(self) -> Tensor:
        """The covariance (n, n), if it was computed with ``full_cov=True``."""
        return self.variance


def compute_log_density(residuals: Tensor, variance: Tensor) -> Tensor:
    """Return log N(residual | 0, variance) of each residual."""
    return -0.5 * (residuals.square() / variance + variance.log() + _LOG_2_PI)


def compute_expected_log_density(residuals: Tensor, variance: Tensor, noise_var: Tensor) -> Tensor:
    """Return E log N(y | f, noise_var) over f ~ N(mean, variance) for each residual y - mean."""
    return -0.5 * ((residuals.square() + variance) / noise_var + noise_var.log() + _LOG_2_PI)
