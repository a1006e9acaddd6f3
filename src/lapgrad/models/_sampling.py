"""Draws from normal distributions whose covariance may be singular."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syevd import syevd


def normal(mean: Tensor, covariance: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draws (count, m, k) of k independent columns with mean (m, k), all of one covariance (m, m).

    Functions at many places are almost determined by those at a few: their covariance is singular up to
    rounding, and has no Cholesky factor. Then a root comes from the eigenvalues, those below 0 taken as 0.
    Nothing is added to the diagonal.
    """
    if count < 0:
        raise _errors.OptionError(f"sample: count must not be negative, got {count}.")
    m, k = mean.shape
    noise = torch.randn(m, count * k, dtype=mean.dtype, device=mean.device, generator=generator)
    drawn = _root(covariance) @ noise
    return mean + drawn.view(m, count, k).transpose(0, 1)


def _root(covariance: Tensor) -> Tensor:
    """R with R Rᵀ = covariance."""
    try:
        return potrf(covariance)
    except _errors.NotPositiveDefiniteError:
        U, eigenvalues = syevd(covariance)
        return U.mT * eigenvalues.clamp_min(0.0).sqrt()
