"""extracttrian: pack a triangle, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items
from lapgrad._kernels.cpu._packing import describe_matrices, is_upper
from lapgrad._kernels.native import core


def extracttrian(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    source, read = describe_matrices(A, is_upper(offset, lower))
    target = v if v.is_contiguous() else torch.empty_like(v, memory_format=torch.contiguous_format)
    core.extracttrian(
        A.element_size(), read, target.data_ptr(), count_items(source), A.shape[-1], abs(offset)
    )
    if target is not v:
        v.copy_(target)
