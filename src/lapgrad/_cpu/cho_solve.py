"""cho_solve: solve with a Cholesky factor, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cpu._native import core
from lapgrad._cpu._operands import items, operand, readable, transposed, writable


def cho_solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> tuple[int, int] | None:
    L, source, target = readable(L), readable(B), writable(X)
    factor = operand(L) if lower else transposed(operand(L))
    n, m = B.shape[-2:]
    zero = core.cho_solve(L.element_size(), *factor, *operand(source), *operand(target), items(B), n, m)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None
