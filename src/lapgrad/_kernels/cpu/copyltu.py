"""copyltu: mirror a triangle, on the compiled core."""

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


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    if A.is_contiguous() and B.is_contiguous():
        # A shortcut: for one small matrix the steps below would take as long as the copy.
        n = A.shape[-1]
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        return core.copyltu(
            A.element_size(), A.data_ptr(), *strides, B.data_ptr(), *strides, count_items(A), n
        )
    source, target = make_readable(A), make_writable(B)
    read, written = describe_operand(source), describe_operand(target)
    if not lower:
        read, written = transpose_operand(read), transpose_operand(written)
    core.copyltu(A.element_size(), *read, *written, count_items(A), A.shape[-1])
    if target is not B:
        B.copy_(target)
