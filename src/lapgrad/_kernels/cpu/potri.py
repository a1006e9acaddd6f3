"""potri: inverse from the Cholesky factor, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable
from lapgrad._kernels.native import core


def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    n = L.shape[-1]
    if L.is_contiguous() and B.is_contiguous():
        # A shortcut: for one small matrix the steps below would take as long as the inverse.
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        read, written = (L.data_ptr(), square, row, col), (B.data_ptr(), square, row, col)
        zero = core.potri(L.element_size(), read, written, count_items(L), n)
        return divmod(zero, n) if zero >= 0 else None
    L, read = hand_over(L, not lower)
    target, written = hand_over(make_writable(B), not lower)
    zero = core.potri(L.element_size(), read, written, count_items(L), n)
    if zero >= 0:
        return divmod(zero, n)
    if target is not B:
        B.copy_(target)
    return None


def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    weight = weight.contiguous()
    L, factor = hand_over(L, not lower)
    _, result = hand_over(B, not lower)
    rank, update = 0, factor
    if X is not None:
        rank = X.shape[-1]
        X, update = hand_over(X, False)
    core.potri_update(
        L.element_size(),
        factor,
        update,
        result,
        weight.data_ptr(),
        count_items(L),
        L.shape[-1],
        rank,
        scale,
        ratio,
    )


def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    L, factor = hand_over(L, not lower)
    gB, cotangent = hand_over(gB, False)
    _, gradient = hand_over(gL, not lower)
    core.potri_vjp(L.element_size(), factor, cotangent, gradient, count_items(L), L.shape[-1])
