"""slogdet: sign and logarithm of a determinant, in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import (
    compute_determinant,
    factorise,
    find_first_failure,
    find_status,
    get_factors,
    invert_transposed,
)
from lapgrad._torch.precision import in_full_precision


def slogdet(sign: Tensor, logabsdet: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    """sign, logabsdet := those of det A. Returns the first (item, status) that is not finite."""
    factors, exchanges = factorise(A, LU, pivots)
    status = find_status(factors, A)
    mantissa, exponent = compute_determinant(factors, exchanges)
    singular = status > 0
    sign.copy_(mantissa.sign().masked_fill(singular, 0.0))
    logarithm = (2.0 * mantissa.abs()).log() + (exponent - 1).to(A.dtype) * math.log(2.0)
    logabsdet.copy_(logarithm.masked_fill(singular, -math.inf))
    return find_first_failure(status < 0, status)


@in_full_precision
def slogdet_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> tuple[int, int] | None:
    """gA := weight A^-T, 0 where A is singular. Returns the first (item, status) of those with a weight."""
    if not A.numel():
        return None
    factors, exchanges = get_factors(A, LU, pivots)
    status = find_status(factors)
    failed = status != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    regular = torch.where(failed[..., None, None], identity, factors)
    gA.copy_(weight[..., None, None] * invert_transposed(regular, exchanges))
    gA.masked_fill_(failed[..., None, None], 0.0)
    return find_first_failure(failed & (weight != 0), status)
