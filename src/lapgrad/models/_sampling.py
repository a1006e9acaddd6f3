"""Draws from normal distributions, whose covariance may be singular."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._products import multiply
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syevd import syevd


def draw_normal(mean: Tensor, covariance: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Return draws (count, m, k) of k independent columns with mean (m, k) and covariance (m, m).

    A covariance (k, m, m) has one matrix for each column. It may be singular up to rounding, as that of a
    smooth function at many points is.
    """
    if count < 0:
        raise _exceptions.OptionError(f"sample: count must not be negative, got {count}.")
    m, k = mean.shape
    noise = torch.randn(m, count * k, dtype=mean.dtype, device=mean.device, generator=generator)
    if covariance.dim() > 2:
        columns = noise.view(m, count, k).permute(2, 0, 1)
        return mean + multiply(compute_root(covariance), columns).permute(2, 1, 0)
    drawn = multiply(compute_root(covariance), noise)
    return mean + drawn.view(m, count, k).transpose(0, 1)


def draw_each_normal(mean: Tensor, covariance: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return one draw for each mean (*batch, m, k) and covariance (*batch, m, m) or (*batch, k, m, m)."""
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    root = compute_root(covariance)
    if covariance.dim() == mean.dim():
        return mean + multiply(root, noise)
    return mean + multiply(root, noise.mT[..., None])[..., 0].mT


def compute_root(covariance: Tensor) -> Tensor:
    """Return R with R Rᵀ = covariance (*batch, m, m), which may be singular.

    R is the Cholesky factor if there is one. Otherwise it comes from the eigenvalues, with those below 0 set
    to 0, so that nothing has to be added to the diagonal.
    """
    try:
        return potrf(covariance)
    except _exceptions.NotPositiveDefiniteError:
        U, eigenvalues = syevd(covariance)
        return U.mT * eigenvalues.clamp_min(0.0).sqrt()[..., None, :]


def draw_standard_normal(generator: torch.Generator | None, *shape: int) -> Tensor:
    """Return standard normal numbers in float64 on the default device, drawn on that of the generator."""
    place = None if generator is None else generator.device
    drawn = torch.randn(*shape, dtype=torch.float64, device=place, generator=generator)
    return drawn.to(torch.get_default_device())
