"""maketrian: unpack a triangle, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, transposed, writable
from lapgrad._kernels.cpu._packing import is_upper, vectors
from lapgrad._kernels.native import core


def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    v, read = vectors(v)
    target = writable(A)
    written = operand(target)
    if is_upper(offset, lower):
        written = transposed(written)
    core.maketrian(v.element_size(), *read, *written, items(A), A.shape[-1], abs(offset))
    if target is not A:
        A.copy_(target)
