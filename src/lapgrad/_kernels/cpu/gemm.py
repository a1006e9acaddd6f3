"""gemm: product added to a matrix, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable
from lapgrad._kernels.native import core


def gemm(
    C: Tensor, A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> None:
    D = make_writable(C)
    if D is not C and beta != 0.0:
        D.copy_(C)
    A, left = hand_over(A, transpose_a)
    B, right = hand_over(B, transpose_b)
    _, result = hand_over(D, False)
    m, n, k = *C.shape[-2:], A.shape[-2 if transpose_a else -1]
    core.gemm(A.element_size(), left, right, result, count_items(C), m, n, k, alpha, beta)
    if D is not C:
        C.copy_(D)
