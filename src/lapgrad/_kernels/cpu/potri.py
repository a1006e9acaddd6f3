"""potri: inverse from the Cholesky factor, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import (
    count_items,
    describe_operand,
    make_readable,
    make_writable,
    transpose_operand,
)
from lapgrad._kernels.native import core


def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    n = L.shape[-1]
    if L.is_contiguous() and B.is_contiguous():
        # A shortcut: for one small matrix the steps below would take as long as the inverse.
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        zero = core.potri(L.element_size(), L.data_ptr(), *strides, B.data_ptr(), *strides, count_items(L), n)
        return divmod(zero, n) if zero >= 0 else None
    source, target = make_readable(L), make_writable(B)
    read, written = describe_operand(source), describe_operand(target)
    if not lower:
        read, written = transpose_operand(read), transpose_operand(written)
    zero = core.potri(L.element_size(), *read, *written, count_items(L), n)
    if zero >= 0:
        return divmod(zero, n)
    if target is not B:
        B.copy_(target)
    return None


def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    L, weight = make_readable(L), weight.contiguous()
    factor, result = describe_operand(L), describe_operand(B)
    if not lower:
        factor, result = transpose_operand(factor), transpose_operand(result)
    if X is not None:
        X = make_readable(X)
    rank, update = (0, factor) if X is None else (X.shape[-1], describe_operand(X))
    core.potri_update(
        L.element_size(),
        *factor,
        *update,
        *result,
        weight.data_ptr(),
        count_items(L),
        L.shape[-1],
        rank,
        scale,
        ratio,
    )


def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    L, gB = make_readable(L), make_readable(gB)
    factor, cotangent, gradient = describe_operand(L), describe_operand(gB), describe_operand(gL)
    if not lower:
        factor, gradient = transpose_operand(factor), transpose_operand(gradient)
    core.potri_vjp(L.element_size(), *factor, *cotangent, *gradient, count_items(L), L.shape[-1])
