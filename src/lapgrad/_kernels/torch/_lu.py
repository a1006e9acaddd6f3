"""The LU factorisation for inverse, det and slogdet: factors, their status, and what is derived from them."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch import lu as _torch_lu
from lapgrad._torch.synchronisation import may_read


def find_status(LU: Tensor, A: Tensor | None = None) -> Tensor:
    """Per item: 0; +k: pivot k (from 1) is zero; -k: row k is not finite, which takes precedence.

    Whole rows are checked, of A too, because a NaN need not reach a pivot: some routines skip products with
    zeros, and cuSOLVER's search for a pivot ignores NaN.
    """
    pivots, finite = LU.diagonal(dim1=-2, dim2=-1), LU.isfinite().all(-1)
    if A is not None:
        finite = finite & A.isfinite().all(-1)
    zero, bad = _find_first(pivots == 0), _find_first(~finite)
    return torch.where(bad != 0, -bad, zero)


def _find_first(mark: Tensor) -> Tensor:
    """Return the number (from 1) of the first mark in each row, 0 where there is none."""
    n = mark.shape[-1]
    if n == 0:
        return mark.new_zeros(mark.shape[:-1], dtype=torch.int32)
    position = mark.to(torch.uint8).argmax(-1).to(torch.int32) + 1
    return torch.where(mark.any(-1), position, 0)


def find_first_failure(failed: Tensor, status: Tensor) -> tuple[int, int] | None:
    """Return the first item that failed, and its status."""
    if not may_read(failed) or not failed.any():
        return None
    item = int(failed.flatten().to(torch.uint8).argmax())
    return item, int(status.flatten()[item])


def factorise(A: Tensor, LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of A; also written, transposed, to LU and pivots unless those are empty."""
    factors, exchanges = _torch_lu.lu_factor(A)
    if LU.numel():
        LU.copy_(factors.mT)
        pivots.copy_(exchanges)
    return factors, exchanges


def get_factors(A: Tensor, LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of A, from LU and pivots if they were kept there."""
    if LU.numel() or not A.numel():
        return LU.mT, pivots
    return _torch_lu.lu_factor(A)


def invert_transposed(factors: Tensor, exchanges: Tensor) -> Tensor:
    """A^-T from the factors of A."""
    identity = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    return torch.linalg.lu_solve(factors, exchanges, identity.expand_as(factors), adjoint=True)


def compute_determinant(factors: Tensor, exchanges: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa (1/2 <= |m| < 1, or 0) and exponent: products of pivots overflow before determinants do."""
    n = factors.shape[-1]
    number = torch.arange(1, n + 1, device=factors.device)
    odd = (exchanges != number).sum(-1) % 2 == 1
    mantissa = torch.where(odd, -1.0, 1.0).to(factors.dtype)
    mantissa, exponent = torch.frexp(mantissa)
    mantissas, exponents = torch.frexp(factors.diagonal(dim1=-2, dim2=-1))
    for k in range(n):
        mantissa, carry = torch.frexp(mantissa * mantissas[..., k])
        exponent = exponent + exponents[..., k] + carry
    return mantissa, exponent
