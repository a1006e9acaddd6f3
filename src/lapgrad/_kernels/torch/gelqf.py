"""gelqf: LQ factorisation, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision
from lapgrad._torch.synchronisation import may_read


@in_full_precision
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    """L, Q := factors of A; without Q only L. Returns (item, row from 1) of the first NaN or infinity."""
    m, n = A.shape[-2:]
    rank = min(m, n)
    if Q is None and m <= n:
        factor = torch.linalg.qr(A.mT, mode="r").R.mT
    else:
        orthogonal, triangle = torch.linalg.qr(A[..., :rank, :].mT)
        factor = triangle.mT
        if m > n:
            factor = torch.cat([factor, A[..., rank:, :] @ orthogonal], -2)
    signs = factor.new_ones(())
    if positive:
        negative = factor.diagonal(dim1=-2, dim2=-1) < 0
        signs = torch.where(negative, -1.0, 1.0).to(A.dtype)[..., None, :]
    torch.mul(factor, signs, out=L)
    if Q is not None:
        torch.mul(orthogonal.mT, signs.mT if positive else signs, out=Q)
    spoilt = ~L.isfinite().all(-1)
    if may_read(L) and spoilt.any():
        item, row = divmod(int(spoilt.flatten().to(torch.uint8).argmax()), m)
        return item, row + 1
    return None


def find_dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    """(item, row from 0) of the first row that depends on those before it: |l_ii| is within the tolerance.

    The tolerance counts in units of the largest entry of the row, or of the largest |l_jj|.
    """
    rank = L.shape[-1]
    if not L.numel() or not may_read(L):
        return None
    left = L.diagonal(dim1=-2, dim2=-1).abs()
    scale = left.amax(-1, keepdim=True) if relative_to_largest else L[..., :rank, :].tril().abs().amax(-1)
    dependent = ~(left > tolerance * scale)
    if dependent.any():
        return divmod(int(dependent.flatten().to(torch.uint8).argmax()), rank)
    return None


def find_dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    """``find_dependent_row`` as a function to be called later: on a GPU other work is launched in between."""
    found = find_dependent_row(L, tolerance, relative_to_largest)
    return lambda: found


@in_full_precision
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA1 := L1^-T (gQ + Z Q), gA2 := gL2 Q, with Z as in ``_compute_middle``."""
    rank = Q.shape[-2]
    top = _compute_middle(Q, L, gQ, gL) @ Q
    if gQ is not None:
        top = top + gQ
    gA[..., :rank, :] = torch.linalg.solve_triangular(L[..., :rank, :].mT, top, upper=True)
    if gL is None:
        gA[..., rank:, :] = 0.0
    else:
        gA[..., rank:, :] = gL[..., rank:, :] @ Q


@in_full_precision
def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    """``gelqf_vjp`` with Q = L1^-1 A1 and without gQ."""
    rank = L.shape[-1]
    Q = torch.linalg.solve_triangular(L[..., :rank, :], A[..., :rank, :], upper=False)
    gelqf_vjp(gA, Q, L, None, gL)


def _compute_middle(Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    """Z = copyltu(L1^T gL1 - gQ Q^T) + (K - K^T above the diagonal), K = gL2^T L2."""
    rank = L.shape[-1]
    lower = L.new_zeros(())
    if gL is not None:
        lower = L[..., :rank, :].mT @ gL[..., :rank, :].tril()
    if gQ is not None:
        lower = lower - gQ @ Q.mT
    middle = lower.tril() + lower.tril(-1).mT
    if gL is not None and L.shape[-2] > rank:
        below = gL[..., rank:, :].mT @ L[..., rank:, :]
        middle = middle + (below - below.mT).triu(1)
    return middle
