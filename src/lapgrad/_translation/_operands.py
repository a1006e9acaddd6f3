"""Which operands lapgrad serves under torch's names; all others, and their errors, are torch's."""

from __future__ import annotations

import torch
from torch import Tensor, is_grad_enabled

_FLOATS = (torch.float32, torch.float64)


def is_served(*matrices: object) -> bool:
    """Whether all operands are nonempty matrices or batches of one device and dtype, float32 or float64."""
    first = matrices[0]
    return isinstance(first, Tensor) and all(
        isinstance(A, Tensor)
        and A.dtype in _FLOATS
        and A.dtype is first.dtype
        and A.device == first.device
        and A.device.type in ("cpu", "cuda")
        and A.layout is torch.strided
        and A.dim() >= 2
        and A.numel() > 0
        for A in matrices
    )


def is_square(A: Tensor) -> bool:
    """Whether matrices have as many rows as columns."""
    return A.shape[-1] == A.shape[-2]


def records_gradient(*operands: Tensor) -> bool:
    """Whether autograd records a call on these operands."""
    return is_grad_enabled() and any(operand.requires_grad for operand in operands)
