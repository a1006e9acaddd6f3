"""Operands of extracttrian and maketrian for the compiled core: which triangle, addresses and strides."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import Operand


def is_upper(offset: int, lower: bool) -> bool:
    """The sign of the offset, if any, chooses the triangle."""
    return offset > 0 or (offset == 0 and not lower)


def describe_matrices(A: Tensor, flipped: bool) -> tuple[Tensor, Operand]:
    """Return A, and the operand of it or of its transpose; A is copied only if items have no common stride.

    No BLAS reads it: rows and columns may have any stride. The tensor must outlive the call of the core.
    """
    if A.is_contiguous():
        n = A.shape[-1]
        return A, (A.data_ptr(), n * n, *((1, n) if flipped else (n, 1)))
    if A.dim() > 3:
        A = A.flatten(0, -3)
    *batch, row, column = A.stride()
    return A, (A.data_ptr(), batch[0] if batch else 0, *((column, row) if flipped else (row, column)))


def describe_vectors(v: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Return v, its address, the stride between vectors and that between entries; copied only if needed."""
    if v.is_contiguous():
        return v, (v.data_ptr(), v.shape[-1], 1)
    if v.dim() > 2:
        v = v.flatten(0, -2)
    *batch, step = v.stride()
    return v, (v.data_ptr(), batch[0] if batch else 0, step)
