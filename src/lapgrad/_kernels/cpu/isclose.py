"""isclose: which entries of two matrices are close, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over
from lapgrad._kernels.native import core

#: Batches of one layout are compared in rows of this length: a matrix of a few entries would cost a call of
#: the kernel.
_ROW = 256


def isclose(close: Tensor, A: Tensor, B: Tensor, rtol: float, atol: float) -> None:
    *_, rows, cols = A.shape
    size = A.element_size()
    if B.is_contiguous():
        numbers = A.numel()
        whole = numbers // _ROW * _ROW
        for start, count, width in ((0, whole // _ROW, _ROW), (whole, 1, numbers - whole)):
            if count * width:
                first, other = ((X.data_ptr() + start * size, 0, width, 1) for X in (A, B))
                core.isclose(size, first, other, close.data_ptr() + start, 1, count, width, rtol, atol)
        return
    B, other = hand_over(B, False)
    core.isclose(
        size,
        (A.data_ptr(), rows * cols, cols, 1),
        other,
        close.data_ptr(),
        *(count_items(A), rows, cols),
        *(rtol, atol),
    )
