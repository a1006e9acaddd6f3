"""trsm: triangular solve, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch import synchronisation as _waiting


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> tuple[int, int] | None:
    """X := t(L)^-1 A, or A t(L)^-1. Returns (item, index) of the first zero pivot; X is then untouched."""
    if _waiting.may_read(L):
        zero = L.diagonal(dim1=-2, dim2=-1) == 0
        if zero.any():
            position = int(zero.flatten().to(torch.uint8).argmax())
            return divmod(position, L.shape[-1])
    X.copy_(
        torch.linalg.solve_triangular(
            L.mT if transpose else L, A, upper=lower == transpose, left=not rightside
        )
    )
    return None


def invert_triangle(W: Tensor, L: Tensor) -> None:
    """W := L^-1, with zeros above the diagonal. One matrix, whose pivots are known not to be 0."""
    identity = torch.eye(len(L), dtype=L.dtype, device=L.device)
    W.copy_(torch.linalg.solve_triangular(L, identity, upper=False))
