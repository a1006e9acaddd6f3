"""inverse: the inverse of a square matrix, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable, writable
from lapgrad._kernels.native import core


def inverse(B: Tensor, A: Tensor) -> tuple[int, int] | None:
    source, target = readable(A), writable(B)
    failure: tuple[int, int] | None = core.inverse(
        A.element_size(), *operand(source), *operand(target), items(A), A.shape[-1]
    )
    if target is not B:
        B.copy_(target)
    return failure


def inverse_vjp(gA: Tensor, B: Tensor, gB: Tensor) -> None:
    B, gB = readable(B), readable(gB)
    core.inverse_vjp(B.element_size(), *operand(B), *operand(gB), *operand(gA), items(B), B.shape[-1])
