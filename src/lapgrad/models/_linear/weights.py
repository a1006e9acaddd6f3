"""The posterior of the weights of a Bayesian linear regression, and its predictions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.models._linear.ridge import Method, solve_ridge
from lapgrad.models._prediction import compute_log_density
from lapgrad.models.criteria.blr_nll import blr_nll, scale_problem
from lapgrad.ops.gelqf import gelqf
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

_LOG_2_PI = math.log(2.0 * math.pi)


class WeightPosterior(NamedTuple):
    """w ~ N(mean, factor factor^T), for each target.

    Attributes:
        mean: (m, k), one column per target.
        factor: (m, m), upper triangular, the same for all targets.
    """

    mean: Tensor
    factor: Tensor

    def covariance(self) -> Tensor:
        """Return the covariance (m, m)."""
        return syrk(self.factor)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Return draws of the weights, (count, m, k)."""
        m, k = self.mean.shape
        normal = torch.randn(
            m, count * k, dtype=self.mean.dtype, device=self.mean.device, generator=generator
        )
        return self.mean + gemm2(self.factor, normal).unflatten(1, (count, k)).movedim(1, 0)


class Observations(NamedTuple):
    """Observations Y (n, k) = Phi (n, m) W + noise, perhaps without rows in which the design is zero.

    Attributes:
        Phi: The design.
        Y: The targets.
        rows: How many rows of zeros were left out.
        square: The sum of squares of the targets in these rows; None: no rows were left out.
    """

    Phi: Tensor
    Y: Tensor
    rows: int = 0
    square: Tensor | None = None


def compress_observations(Phi: Tensor, Y: Tensor) -> Observations:
    """Return m rows with the same likelihood: rotated so that all other rows of the design are zero.

    Phi^T = L Q means Phi = Q^T L^T, and with Q completed to a rotation all but m rows of the rotated design
    are zero. The rotation does not change the distribution of the noise. The sum of squares of the targets
    in the rows of zeros is that of (I - Q^T Q) Y. Products of features are never formed.
    """
    Q, L = gelqf(Phi.mT)
    top = gemm2(Q, Y)
    return Observations(
        L.mT.contiguous(), top, len(Phi) - len(top), (Y - gemm2(Q, top, transpose_a=True)).square().sum()
    )


def compute_nll(observations: Observations, noise_var: Tensor, prior_var: Tensor, method: Method) -> Tensor:
    """Return ``blr_nll`` of observations; each row that was left out adds -log N(y | 0, noise)."""
    Phi, Y, rows, square = observations
    value = blr_nll(Phi, Y, noise_var, prior_var, method=method)
    if square is None:
        return value
    return value + 0.5 * (square / noise_var + rows * Y.shape[1] * (noise_var.log() + _LOG_2_PI))


def compute_posterior(
    who: str, Phi: Tensor, Y: Tensor, noise_var: Tensor, prior_var: Tensor, method: Method
) -> WeightPosterior:
    """Return the posterior of the weights of Y (n, k) = Phi (n, m) W + noise.

    With L L^T = I + A A^T of the problem in unit variances, w = S^(1/2) W and cov(w) = S^(1/2) L^-T L^-1
    S^(1/2), where S is the prior covariance.
    """
    A, unit_Y, _ = scale_problem(who, Phi, Y, noise_var, prior_var, method)
    L, W, _ = solve_ridge(who, A, unit_Y, method)
    deviations = prior_var.sqrt().expand(Phi.shape[-1])[:, None]
    inverse = trsm(L, torch.eye(len(L), dtype=L.dtype, device=L.device), transpose=True)
    return WeightPosterior(deviations * W, deviations * inverse)


def predict_targets(
    found: WeightPosterior, Phi: Tensor, noise_var: Tensor | None, full_cov: bool
) -> tuple[Tensor, Tensor]:
    """Return mean (n, k) and variance (n) or covariance (n, n) of Phi w, plus noise if it is given."""
    mean, spread = gemm2(Phi, found.mean), gemm2(Phi, found.factor)
    if full_cov:
        covariance = syrk(spread)
        if noise_var is None:
            return mean, covariance
        return mean, covariance + noise_var * torch.eye(len(Phi), dtype=Phi.dtype, device=Phi.device)
    variance = spread.square().sum(-1)
    return mean, variance if noise_var is None else variance + noise_var


def compute_log_densities(found: WeightPosterior, Phi: Tensor, Y: Tensor, noise_var: Tensor) -> Tensor:
    """Return log p(y | data) of each entry y of Y (n, k) = Phi W + noise."""
    mean, variance = predict_targets(found, Phi, noise_var, False)
    variance = variance[:, None]
    return compute_log_density(Y - mean, variance)


def compute_joint_log_densities(
    found: WeightPosterior, Phi: Tensor, Y: Tensor, noise_var: Tensor, method: Method
) -> Tensor:
    """Return log p(y | data) of each column y of Y (n, k), with the posterior as the prior of the weights.

    Y - Phi mean = (Phi factor) u + noise with u ~ N(0, I).
    """
    residual, spread = Y - gemm2(Phi, found.mean), gemm2(Phi, found.factor)
    return -blr_nll(spread, residual.mT[..., None], noise_var, 1.0, method=method)
