"""maketrian: unpack a triangle, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_writable, transpose_operand
from lapgrad._kernels.cpu._packing import describe_vectors, is_upper
from lapgrad._kernels.native import core


def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    v, read = describe_vectors(v)
    target = make_writable(A)
    written = describe_operand(target)
    if is_upper(offset, lower):
        written = transpose_operand(written)
    core.maketrian(v.element_size(), *read, written, count_items(A), A.shape[-1], abs(offset))
    if target is not A:
        A.copy_(target)
