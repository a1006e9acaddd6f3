"""trsm and trmm on the compiled core: triangle and side are expressed by strides."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable


def run_triangle(
    routine: Any, X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    # A t(L)^-1 = (t(L)^-T A')': a right side is a left side with everything transposed.
    flipped = transpose != rightside
    L, triangle = hand_over(L, flipped)
    source, read = hand_over(A, rightside)
    target, written = hand_over(make_writable(X), rightside)
    if flipped:
        lower = not lower
    n = L.shape[-1]
    m = A.shape[-2] if rightside else A.shape[-1]
    zero: int = routine(L.element_size(), triangle, read, written, count_items(source), n, m, lower)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None
