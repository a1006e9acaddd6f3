"""gemmt: one triangle of a product, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over
from lapgrad._kernels.native import core


def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    # The upper triangle of A B is the lower one of B' A'.
    A, left = hand_over(A, transpose_a == lower)
    B, right = hand_over(B, transpose_b == lower)
    C, result = hand_over(C, not lower)
    if not lower:
        left, right = right, left
    k = A.shape[-2] if transpose_a else A.shape[-1]
    core.gemmt(A.element_size(), left, right, result, count_items(C), C.shape[-1], k, alpha, False)
