"""gemmt: one triangle of a product, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cpu._native import core
from lapgrad._cpu._operands import items, operand, readable, transposed


def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    A, B = readable(A), readable(B)
    left, right, result = operand(A), operand(B), operand(C)
    left = transposed(left) if transpose_a else left
    right = transposed(right) if transpose_b else right
    if not lower:  # the upper triangle of A B is the lower one of B' A'
        left, right, result = transposed(right), transposed(left), transposed(result)
    k = A.shape[-2] if transpose_a else A.shape[-1]
    core.gemmt(A.element_size(), *left, *right, *result, items(C), C.shape[-1], k, alpha, False)
