"""Log likelihoods by importance sampling: log p(y) from samples of q(h | y).

    log p(y) ≈ log 1/S Σ_s w_s,   w_s = p(y | h_1) p(h_1 | h_2) ... p(h_L) / q(h_1, ..., h_L | y)

The logarithms of weights differ by hundreds, so weights are summed in float64 relative to the largest one so
far. The error of the logarithm of a mean of S weights is the relative error of the mean (the delta method):
its variance is (Σ w² / (Σ w)² - 1 / S) · S / (S - 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class LogLikelihood(NamedTuple):
    """Log densities of observations that a model has not seen.

    Attributes:
        mean: Mean over all observations.
        standard_error: Standard error of that mean, from the differences between observations.
        sampling_error: Standard error of that mean, from the finite number of samples of latent variables (a
            lower bound, because important samples may have been missed).
        values: (n,), float64, one per observation.
        effective_samples: (n,), float64: the number of samples of equal weight with the same error, (Σ w)² /
            Σ w².
    """

    mean: float
    standard_error: float
    sampling_error: float
    values: Tensor
    effective_samples: Tensor


class WeightSums:
    """Running sums over samples s of the weights w_s (n,) and of their squares.

    Args:
        n: Observations.
        device: Where the sums are kept.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self.samples = 0
        self.largest = torch.full((n,), -torch.inf, dtype=torch.float64, device=device)
        self.sums, self.squares = (torch.zeros(n, dtype=torch.float64, device=device) for _ in range(2))

    def add(self, rows: slice, log_weights: Tensor) -> None:
        """Add the log weights (s, b) of samples for the observations ``rows``."""
        log_weights = log_weights.to(torch.float64)
        largest = torch.maximum(self.largest[rows], log_weights.amax(0))
        before = (self.largest[rows] - largest).exp()
        scaled = (log_weights - largest).exp()
        self.sums[rows] = self.sums[rows] * before + scaled.sum(0)
        self.squares[rows] = self.squares[rows] * before.square() + scaled.square().sum(0)
        self.largest[rows] = largest

    def estimate(self, samples: int) -> LogLikelihood:
        """Return the estimates, after ``samples`` samples have been added for each observation."""
        values = self.largest + self.sums.log() - math.log(samples)
        effective = self.sums.square() / self.squares
        relative = (1.0 / effective - 1.0 / samples).clamp_min(0.0) * samples / max(1, samples - 1)
        n = len(values)
        error = float(values.std() / n**0.5) if n > 1 else float("nan")
        sampling = float(relative.sum().sqrt() / n)
        return LogLikelihood(float(values.mean()), error, sampling, values, effective)
