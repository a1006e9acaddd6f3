"""cho_solve: solve with a Cholesky factor, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cpu._native import core
from lapgrad._cpu._operands import items, operand, readable, transposed, writable


def cho_solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> tuple[int, int] | None:
    if L.is_contiguous() and B.is_contiguous() and X.is_contiguous():
        # Without the detours below: for one small matrix they cost as much as the solve.
        n, m = B.shape[-2:]
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        columns = (n * m, m, 1)
        zero = core.cho_solve(
            L.element_size(),
            L.data_ptr(),
            *strides,
            B.data_ptr(),
            *columns,
            X.data_ptr(),
            *columns,
            items(B),
            n,
            m,
        )
        return divmod(zero, n) if zero >= 0 else None
    L, source, target = readable(L), readable(B), writable(X)
    factor = operand(L) if lower else transposed(operand(L))
    n, m = B.shape[-2:]
    zero = core.cho_solve(L.element_size(), *factor, *operand(source), *operand(target), items(B), n, m)
    if zero >= 0:
        return divmod(zero, n)
    if target is not X:
        X.copy_(target)
    return None
