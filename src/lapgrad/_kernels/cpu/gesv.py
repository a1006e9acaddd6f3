"""gesv: solve with a general matrix by LU factorisation, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over
from lapgrad._kernels.native import core


def gesv(
    X: Tensor, LU: Tensor, pivots: Tensor, A: Tensor, B: Tensor, transpose: bool
) -> tuple[int, int] | None:
    A, matrix = hand_over(A, False)
    B, right = hand_over(B, False)
    n, m = B.shape[-2:]
    factors = LU.data_ptr(), pivots.data_ptr()
    failure: tuple[int, int] | None = core.gesv(
        A.element_size(), matrix, right, hand_over(X, False)[1], *factors, transpose, count_items(B), n, m
    )
    return failure


def gesv_factored(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> None:
    LU, pivots = LU.contiguous(), pivots.contiguous()
    B, right = hand_over(B, False)
    n, m = B.shape[-2:]
    factors = LU.data_ptr(), pivots.data_ptr()
    core.gesv_factored(
        B.element_size(), *factors, right, hand_over(X, False)[1], transpose, count_items(B), n, m
    )
