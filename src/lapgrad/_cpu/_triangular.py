"""What trsm and trmm share: the triangle and the side become strides."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapgrad._cpu._operands import items, operand, readable, transposed, writable


def run_triangle(
    routine: Any, X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    # A t(L)^-1 = (t(L)^-T A')': a right side is a left side with everything transposed.
    L, source, target = readable(L), readable(A), writable(X)
    triangle, read, written = operand(L), operand(source), operand(target)
    if transpose != rightside:
        triangle, lower = transposed(triangle), not lower
    if rightside:
        read, written = transposed(read), transposed(written)
    n = L.shape[-1]
    m = A.shape[-2] if rightside else A.shape[-1]
    zero: int = routine(L.element_size(), *triangle, *read, *written, items(L), n, m, lower)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None
