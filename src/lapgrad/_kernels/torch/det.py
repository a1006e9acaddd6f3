"""det: determinant and cofactors, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import (
    determinant,
    factorise,
    first_failure,
    kept_factors,
    scaled,
    status_of,
    transposed_inverse,
)
from lapgrad._torch import lu as _torch_lu
from lapgrad._torch.precision import in_full_precision


def det(d: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    """d := det A. Returns the first (item, status) that is not finite."""
    factors, exchanges = factorise(A, LU, pivots)
    status = status_of(factors, A)
    d.copy_(scaled(*determinant(factors, exchanges)).masked_fill(status > 0, 0.0))
    return first_failure(status < 0, status)


@in_full_precision
def det_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> None:
    """gA := weight times the matrix of cofactors: weight det(A) A^-T, or through the SVD for singular A.

    The inverse comes from the pivots that make the determinant, so that a small pivot divides by exactly what
    it multiplies: near a singular matrix the cofactors lose no digits.
    """
    if not A.numel():
        return
    factors, exchanges = kept_factors(A, LU, pivots)
    singular = status_of(factors) != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    regular = torch.where(singular[..., None, None], identity, factors)
    mantissa, exponent = determinant(regular, exchanges)
    inverse = transposed_inverse(regular, exchanges)
    gA.copy_(scaled((weight * mantissa)[..., None, None] * inverse, exponent[..., None, None]))
    overflows = ~inverse.flatten(-2).isfinite().all(-1)
    replace_cofactors(gA, A, weight, singular | overflows)


def replace_cofactors(gA: Tensor, A: Tensor, weight: Tensor, singular: Tensor) -> None:
    """gA := weight times the cofactors, of the items that have no inverse."""
    if singular.any():
        gA[singular] = weight[singular][..., None, None] * _cofactors(A[singular])


def _cofactors(A: Tensor) -> Tensor:
    """The cofactors of A = U diag(s) V^T: det(U) det(V) U diag(product of the other s) V^T."""
    U, s, Vh = torch.linalg.svd(A)
    sign = (_torch_lu.det(U) * _torch_lu.det(Vh)).sign()
    return sign[..., None, None] * ((U * _products_of_the_others(s)[..., None, :]) @ Vh)


def _products_of_the_others(s: Tensor) -> Tensor:
    """For each i the product of all s but s_i, without division: prefix times suffix, exponents apart."""
    n = s.shape[-1]
    if n == 0:
        return s.clone()
    mantissas, exponents = torch.frexp(s)
    one: tuple[Tensor, Tensor] = torch.frexp(torch.ones_like(s[..., 0]))
    prefix, suffix = [one], [one]
    for k in range(n - 1):
        for chain, position in ((prefix, k), (suffix, n - 1 - k)):
            mantissa, exponent = chain[-1]
            mantissa, carry = torch.frexp(mantissa * mantissas[..., position])
            chain.append((mantissa, exponent + exponents[..., position] + carry))
    pairs = zip(prefix, reversed(suffix), strict=True)
    return torch.stack([scaled(a * b, x + y) for (a, x), (b, y) in pairs], -1)
