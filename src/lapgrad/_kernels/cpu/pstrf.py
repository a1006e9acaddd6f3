"""pstrf: Cholesky factorisation with pivoting, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, hand_over, transpose_operand
from lapgrad._kernels.native import core


def pstrf(
    L: Tensor, pivots: Tensor, rank: Tensor, A: Tensor, tol: float | None, lower: bool
) -> tuple[int, int] | None:
    A, matrix = hand_over(A, not lower)
    factor = describe_operand(L) if lower else transpose_operand(describe_operand(L))
    failure: tuple[int, int] | None = core.pstrf(
        A.element_size(),
        matrix,
        factor,
        pivots.data_ptr(),
        rank.data_ptr(),
        count_items(A),
        A.shape[-1],
        L.shape[-1 if lower else -2],
        -1.0 if tol is None else tol,
    )
    return failure


def serves_pstrf_vjp(L: Tensor) -> bool:
    """Whether L is square: all columns were asked for."""
    return L.shape[-1] == L.shape[-2]


def pstrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, pivots: Tensor, found: Tensor) -> None:
    """gA := the gradient for the cotangent gL, in the order of A."""
    L, factor = hand_over(L, False)
    gL, cotangent = hand_over(gL, False)
    pivots, found = pivots.contiguous(), found.contiguous()
    addresses = pivots.data_ptr(), found.data_ptr(), gA.data_ptr()
    core.pstrf_vjp(L.element_size(), factor, cotangent, *addresses, count_items(L), L.shape[-1])
