"""Poisson: counts."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad.models._prediction import Prediction
from lapgrad.models.likelihoods.base import ElementwiseLikelihood, Start, require


class Poisson(ElementwiseLikelihood):
    """p(y | f) = exp(y f - exp(f)) / y!, counts with the rate exp(f): one function per column of y.

    Example:
        >>> import torch
        >>> from lapgrad.models.likelihoods import Poisson
        >>> Poisson().log_prob(torch.zeros(1, 1), torch.ones(1, 1))
        tensor([-1.])
    """

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless all are whole numbers >= 0."""
        require(who, name, (y >= 0) & (y == y.floor()), "whole numbers >= 0")

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return y f - exp(f) - log y!."""
        return y * f - f.exp() - torch.lgamma(y + 1.0)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return y mean - exp(mean + variance / 2) - log y!, summed over the columns."""
        return (y * mean - (mean + 0.5 * variance).exp() - torch.lgamma(y + 1.0)).sum(-1)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rate, twice."""
        return f.exp(), f.exp()

    def predict_observations(self, mean: Tensor, variance: Tensor) -> Prediction:
        """Return the moments of a Poisson variable with a log normal rate."""
        rate = (mean + 0.5 * variance).exp()
        return Prediction(rate, rate + rate.square() * torch.expm1(variance))

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return counts."""
        return torch.poisson(f.exp(), generator=generator)

    def approximate(self, y: Tensor) -> Start:
        """Return a step of Newton's method at the logarithm of the mean count: f + (y - rate) / rate."""
        rate = y.mean(0).clamp_min(1.0 / (len(y) + 1.0))
        return Start(rate.log(), (y - rate) / rate, (1.0 / rate).mean())
