"""sumlogdiag: logarithms of a diagonal, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable
from lapgrad._kernels.native import core


def sumlogdiag(s: Tensor, A: Tensor) -> None:
    sum_logs_and_squares(s, A, None, 0.0, 1.0, 0.0)


def sum_logs_and_squares(
    s: Tensor, L: Tensor, W: Tensor | None, constant: float, logs: float, squares: float
) -> None:
    L = make_readable(L)
    matrix = describe_operand(L)
    rank, other = 0, matrix
    if W is not None:
        W = make_readable(W)
        rank, other = W.shape[-1], describe_operand(W)
    n = L.shape[-1]
    core.sumlogdiag(
        L.element_size(), matrix, other, s.data_ptr(), count_items(L), n, rank, constant, logs, squares
    )
