"""Tensors as the core takes them: addresses and strides.

A row-major matrix is passed without a copy. The core knows only lower triangles and left sides:
``lower=False`` and ``rightside=True`` become swapped strides (the transpose of a matrix is the same memory,
read the other way).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._errors import LARGEST_DIMENSION

#: A batch of matrices as the core takes it: address, batch stride, row stride, column stride (in elements).
Operand = tuple[int, int, int, int]


def transpose_operand(operand: Operand) -> Operand:
    address, batch_stride, row_stride, col_stride = operand
    return address, batch_stride, col_stride, row_stride


def get_strides(tensor: Tensor) -> tuple[int, int, int] | None:
    """Batch, row and column stride; None if there is no common batch stride or BLAS cannot read it."""
    *batch_strides, row_stride, col_stride = tensor.stride()
    *batch_shape, rows, cols = tensor.shape
    if row_stride == 1 and col_stride == rows > 1 < cols and not batch_shape:  # what LAPACK's factors are
        return 0, 1, col_stride
    # A dimension of size 1 may carry any stride: give it one that BLAS accepts.
    if cols == 1 and (rows == 1 or row_stride >= 1):
        row_stride, col_stride = max(row_stride, 1), 1
    elif rows == 1 and col_stride > 1:
        row_stride = 1
    elif rows == 1 and col_stride == 1:
        row_stride = max(cols, row_stride)
    if not ((col_stride == 1 and row_stride >= cols) or (row_stride == 1 and col_stride >= rows)):
        return None
    if max(row_stride, col_stride) > LARGEST_DIMENSION:  # BLAS takes strides as 32-bit integers
        return None
    batch_stride, span = 0, 1
    for size, stride in zip(reversed(batch_shape), reversed(batch_strides), strict=True):
        if size == 1:
            continue
        if span == 1:
            batch_stride = stride
        elif stride != batch_stride * span:
            return None
        span *= size
    return batch_stride, row_stride, col_stride


def make_readable(tensor: Tensor) -> Tensor:
    """``tensor`` itself, or a copy if the core cannot read its strides."""
    return tensor if tensor.is_contiguous() or get_strides(tensor) is not None else tensor.contiguous()


def describe_operand(tensor: Tensor) -> Operand:
    """Address and strides of a tensor of ``make_readable`` or ``make_writable``."""
    if tensor.is_contiguous():
        shape = tensor.shape
        cols = shape[-1]
        return tensor.data_ptr(), shape[-2] * cols, cols, 1
    found = get_strides(tensor)
    assert found is not None
    return tensor.data_ptr(), *found


def hand_over(tensor: Tensor, flipped: bool) -> tuple[Tensor, Operand]:
    """Return a readable tensor and its operand, transposed if ``flipped``.

    This is one function, because each Python call takes noticeable time for a small matrix. The tensor, which
    may be a copy, must outlive the call of the core.
    """
    if tensor.is_contiguous():
        *_, rows, cols = tensor.shape
        return tensor, (tensor.data_ptr(), rows * cols, *((1, cols) if flipped else (cols, 1)))
    found = get_strides(tensor)
    if found is None:
        return hand_over(tensor.contiguous(), flipped)
    batch_stride, row_stride, col_stride = found
    if flipped:
        return tensor, (tensor.data_ptr(), batch_stride, col_stride, row_stride)
    return tensor, (tensor.data_ptr(), batch_stride, row_stride, col_stride)


def make_writable(out: Tensor) -> Tensor:
    """``out`` itself if the core can write into it, else a contiguous tensor to be copied back."""
    if out.is_contiguous() or get_strides(out) is not None:
        return out
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def count_items(tensor: Tensor) -> int:
    return 1 if tensor.dim() == 2 else tensor.shape[:-2].numel()
