"""gemm: product added to a matrix, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision


@in_full_precision
def gemm(
    C: Tensor, A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> None:
    """C := alpha ta(A) tb(B) + beta C. With beta = 0 the old C is not read."""
    A, B = A.mT if transpose_a else A, B.mT if transpose_b else B
    if C.dim() == 2:
        C.addmm_(A, B, beta=beta, alpha=alpha)
    elif C.dim() == 3:
        C.baddbmm_(A, B, beta=beta, alpha=alpha)
    elif beta == 0.0:
        torch.matmul(A, B, out=C)
        if alpha != 1.0:
            C.mul_(alpha)
    else:
        C.mul_(beta).add_(A @ B, alpha=alpha)
