"""gemmt: one triangle of a product, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision


@in_full_precision
def gemmt(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    """C := alpha tri(ta(A) tb(B)), the other triangle 0."""
    torch.matmul(A.mT if transpose_a else A, B.mT if transpose_b else B, out=C)
    if lower:
        C.tril_()
    else:
        C.triu_()
    if alpha != 1.0:
        C.mul_(alpha)
