"""The cofactors of matrices without an inverse, which the gradient of a determinant needs on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch import lu as _torch_lu


def replace_cofactors(gA: Tensor, A: Tensor, weight: Tensor, singular: Tensor) -> None:
    """gA := weight times the cofactors, for the items that ``singular`` marks; others stay as they are."""
    if singular.any():
        gA[singular] = weight[singular][..., None, None] * _compute_cofactors(A[singular])


def _compute_cofactors(A: Tensor) -> Tensor:
    """Return the cofactors of A = U diag(s) V^T: det(U) det(V) U diag(product of the other s) V^T."""
    U, s, Vh = torch.linalg.svd(A)
    sign = (_torch_lu.det(U) * _torch_lu.det(Vh)).sign()
    return sign[..., None, None] * ((U * _multiply_others(s)[..., None, :]) @ Vh)


def _multiply_others(s: Tensor) -> Tensor:
    """For each i the product of all s but s_i: prefix times suffix, without division.

    Exponents are kept apart from mantissas, so that no product overflows before the result does.
    """
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
    return torch.stack([scale_by_power(a * b, x + y) for (a, x), (b, y) in pairs], -1)


def scale_by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2^exponent, in two steps so that neither power is out of range before the result is."""
    exponent = exponent.clamp(-4000, 4000)
    half = exponent // 2
    return torch.ldexp(torch.ldexp(x, half), exponent - half)
