"""Bernoulli: yes or no."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lapgrad.models.likelihoods.base import ElementwiseLikelihood, Start, require


class Bernoulli(ElementwiseLikelihood):
    """p(y = 1 | f) = 1 / (1 + exp(-f)), y 0 or 1: one function per column of y.

    Example:
        >>> import torch
        >>> from lapgrad.models.likelihoods import Bernoulli
        >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.ones(1, 1)).exp()
        tensor([0.5000])
    """

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless all are 0 or 1."""
        require(who, name, (y == 0) | (y == 1), "0 or 1")

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log sigmoid(f) where y is 1, log sigmoid(-f) where it is 0."""
        return functional.logsigmoid((2.0 * y - 1.0) * f)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return p and p (1 - p)."""
        p = torch.sigmoid(f)
        return p, p * (1.0 - p)

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return 0 or 1."""
        return torch.bernoulli(torch.sigmoid(f), generator=generator)

    def approximate(self, y: Tensor) -> Start:
        """Return a step of Newton's method at the constant with the frequency p of y: f + (y - p) / p (1-p).

        The variance is the mean of 1 / p (1 - p).
        """
        p = ((y.sum(0) + 1.0) / (len(y) + 2.0)).clamp(0.02, 0.98)
        return Start(p.logit(), (y - p) / (p * (1.0 - p)), (1.0 / (p * (1.0 - p))).mean())
