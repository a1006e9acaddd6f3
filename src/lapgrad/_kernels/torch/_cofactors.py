"""Cofactors of singular matrices, through their singular value decomposition."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import scaled
from lapgrad._torch import lu as _torch_lu


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
