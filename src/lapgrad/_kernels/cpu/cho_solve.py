"""cho_solve: solve with a Cholesky factor, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable, transpose_operand
from lapgrad._kernels.native import core


def cho_solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> tuple[int, int] | None:
    if L.is_contiguous() and B.is_contiguous() and X.is_contiguous():
        # A shortcut: for one small matrix the steps below would take as long as the solve.
        n, m = B.shape[-2:]
        factor = (L.data_ptr(), n * n, n, 1) if lower else (L.data_ptr(), n * n, 1, n)
        right, result = (B.data_ptr(), n * m, m, 1), (X.data_ptr(), n * m, m, 1)
        zero = core.cho_solve(L.element_size(), factor, right, result, count_items(B), n, m)
        return divmod(zero, n) if zero >= 0 else None
    L, factor = hand_over(L, not lower)
    source, read = hand_over(B, False)
    target, written = hand_over(make_writable(X), False)
    n, m = B.shape[-2:]
    zero = core.cho_solve(L.element_size(), factor, read, written, count_items(source), n, m)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None


def cho_solve_vjp(gL: Tensor, gB: Tensor, L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> None:
    """Z = L⁻¹ gX, gB = L⁻ᵀ Z, W = Lᵀ X and gL = -tril(gB Wᵀ + X Zᵀ), straight on the core.

    By the routines of other files strides would be worked out four times, which takes longer than the
    computation for a small matrix.
    """
    # For R instead of L: L = R', and gL = gR'.
    L, factor = hand_over(L, not lower)
    X, solution = hand_over(X, False)
    gX, cotangent = hand_over(gX, False)
    gradient, of_right = hand_over(gL, not lower)[1], hand_over(gB, False)[1]
    work = torch.empty_like(gB), torch.empty_like(gB)
    Z, W = (hand_over(half, False)[1] for half in work)
    upper = transpose_operand(factor)
    size, count, (n, m) = L.element_size(), count_items(X), X.shape[-2:]
    core.trsm(size, factor, cotangent, Z, count, n, m, True)
    core.trsm(size, upper, Z, of_right, count, n, m, False)
    core.trmm(size, upper, solution, W, count, n, m, False)
    product = (of_right, transpose_operand(W), solution, transpose_operand(Z))
    core.gemmt_sum(size, *product, gradient, count, n, m, -1.0, False)
