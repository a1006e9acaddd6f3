"""copyltu: mirror a triangle, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable, transposed, writable
from lapgrad._kernels.native import core


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    if A.is_contiguous() and B.is_contiguous():
        # Without the detours below: for one small matrix they cost as much as the copy.
        n = A.shape[-1]
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        return core.copyltu(A.element_size(), A.data_ptr(), *strides, B.data_ptr(), *strides, items(A), n)
    source, target = readable(A), writable(B)
    read, written = operand(source), operand(target)
    if not lower:
        read, written = transposed(read), transposed(written)
    core.copyltu(A.element_size(), *read, *written, items(A), A.shape[-1])
    if target is not B:
        B.copy_(target)
