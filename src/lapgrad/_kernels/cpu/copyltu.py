"""copyltu: mirror a triangle, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable
from lapgrad._kernels.native import core


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    if A.is_contiguous() and B.is_contiguous():
        # A shortcut: for one small matrix the steps below would take as long as the copy.
        n = A.shape[-1]
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        read, written = (A.data_ptr(), square, row, col), (B.data_ptr(), square, row, col)
        return core.copyltu(A.element_size(), read, written, count_items(A), n)
    A, read = hand_over(A, not lower)
    target, written = hand_over(make_writable(B), not lower)
    core.copyltu(A.element_size(), read, written, count_items(A), A.shape[-1])
    if target is not B:
        B.copy_(target)
