"""gemmt_sum: one triangle of the sum of two products, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable, transpose_operand
from lapgrad._kernels.native import core


def gemmt_sum(
    C: Tensor, A: Tensor, B: Tensor, D: Tensor, E: Tensor, lower: bool, symmetric: bool, alpha: float
) -> None:
    A, B, D, E = make_readable(A), make_readable(B), make_readable(D), make_readable(E)
    if not lower:  # the upper triangle of A B' is the lower one of B A', transposed
        A, B, D, E = B, A, E, D
    result = describe_operand(C) if lower else transpose_operand(describe_operand(C))
    core.gemmt_sum(
        C.element_size(),
        describe_operand(A),
        transpose_operand(describe_operand(B)),
        describe_operand(D),
        transpose_operand(describe_operand(E)),
        result,
        count_items(C),
        C.shape[-1],
        A.shape[-1],
        alpha,
        symmetric,
    )
