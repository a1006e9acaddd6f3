"""inverse: the inverse of a square matrix, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable, make_writable
from lapgrad._kernels.native import core


def inverse(B: Tensor, A: Tensor) -> tuple[int, int] | None:
    source, target = make_readable(A), make_writable(B)
    failure: tuple[int, int] | None = core.inverse(
        A.element_size(), describe_operand(source), describe_operand(target), count_items(A), A.shape[-1]
    )
    if target is not B:
        B.copy_(target)
    return failure


def inverse_vjp(gA: Tensor, B: Tensor, gB: Tensor) -> None:
    B, gB = make_readable(B), make_readable(gB)
    core.inverse_vjp(
        B.element_size(),
        describe_operand(B),
        describe_operand(gB),
        describe_operand(gA),
        count_items(B),
        B.shape[-1],
    )
