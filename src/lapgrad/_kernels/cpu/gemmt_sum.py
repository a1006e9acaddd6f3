"""gemmt_sum: one triangle of the sum of two products, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable, transposed
from lapgrad._kernels.native import core


def gemmt_sum(
    C: Tensor, A: Tensor, B: Tensor, D: Tensor, E: Tensor, lower: bool, symmetric: bool, alpha: float
) -> None:
    A, B, D, E = readable(A), readable(B), readable(D), readable(E)
    if not lower:  # the upper triangle of A B' is the lower one of B A', transposed
        A, B, D, E = B, A, E, D
    result = operand(C) if lower else transposed(operand(C))
    core.gemmt_sum(
        C.element_size(),
        *operand(A),
        *transposed(operand(B)),
        *operand(D),
        *transposed(operand(E)),
        *result,
        items(C),
        C.shape[-1],
        A.shape[-1],
        alpha,
        symmetric,
    )
