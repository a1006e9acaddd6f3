"""det: determinant and cofactors, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.cofactors import replace_cofactors, scale_by_power
from lapgrad._kernels.torch._lu import (
    compute_determinant,
    factorise,
    find_first_failure,
    find_status,
    get_factors,
    invert_transposed,
)
from lapgrad._torch.precision import in_full_precision


def det(d: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    """d := det A. Returns the first (item, status) that is not finite."""
    factors, exchanges = factorise(A, LU, pivots)
    status = find_status(factors, A)
    d.copy_(scale_by_power(*compute_determinant(factors, exchanges)).masked_fill(status > 0, 0.0))
    return find_first_failure(status < 0, status)


@in_full_precision
def det_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> None:
    """gA := weight times the matrix of cofactors: weight det(A) A^-T, or through the SVD for singular A.

    The inverse comes from the pivots that make the determinant, so that a small pivot divides by exactly what
    it multiplies: near a singular matrix the cofactors lose no digits.
    """
    if not A.numel():
        return
    factors, exchanges = get_factors(A, LU, pivots)
    singular = find_status(factors) != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    regular = torch.where(singular[..., None, None], identity, factors)
    mantissa, exponent = compute_determinant(regular, exchanges)
    inverse = invert_transposed(regular, exchanges)
    gA.copy_(scale_by_power((weight * mantissa)[..., None, None] * inverse, exponent[..., None, None]))
    overflows = ~inverse.flatten(-2).isfinite().all(-1)
    replace_cofactors(gA, A, weight, singular | overflows)
