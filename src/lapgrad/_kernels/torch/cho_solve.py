"""cho_solve: solve with a Cholesky factor, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.synchronisation import may_read


def cho_solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> tuple[int, int] | None:
    """X := (L L^T)^-1 B. Returns (item, index) of the first zero pivot; X is then untouched."""
    if may_read(L):
        zero = L.diagonal(dim1=-2, dim2=-1) == 0
        if zero.any():
            position = int(zero.flatten().to(torch.uint8).argmax())
            return divmod(position, L.shape[-1])
    factor = L if lower else L.mT
    half = torch.linalg.solve_triangular(factor, B, upper=False)
    X.copy_(torch.linalg.solve_triangular(factor.mT, half, upper=True))
    return None
