"""potri: inverse from the Cholesky factor, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable, transposed, writable
from lapgrad._kernels.native import core


def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    n = L.shape[-1]
    if L.is_contiguous() and B.is_contiguous():
        # Without the detours below: for one small matrix they cost as much as the inverse.
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        zero = core.potri(L.element_size(), L.data_ptr(), *strides, B.data_ptr(), *strides, items(L), n)
        return divmod(zero, n) if zero >= 0 else None
    source, target = readable(L), writable(B)
    read, written = operand(source), operand(target)
    if not lower:
        read, written = transposed(read), transposed(written)
    zero = core.potri(L.element_size(), *read, *written, items(L), n)
    if zero >= 0:
        return divmod(zero, n)
    if target is not B:
        B.copy_(target)
    return None


def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    L, weight = readable(L), weight.contiguous()
    factor, result = operand(L), operand(B)
    if not lower:
        factor, result = transposed(factor), transposed(result)
    if X is not None:
        X = readable(X)
    rank, update = (0, factor) if X is None else (X.shape[-1], operand(X))
    core.potri_update(
        L.element_size(),
        *factor,
        *update,
        *result,
        weight.data_ptr(),
        items(L),
        L.shape[-1],
        rank,
        scale,
        ratio,
    )


def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    L, gB = readable(L), readable(gB)
    factor, cotangent, gradient = operand(L), operand(gB), operand(gL)
    if not lower:
        factor, gradient = transposed(factor), transposed(gradient)
    core.potri_vjp(L.element_size(), *factor, *cotangent, *gradient, items(L), L.shape[-1])
