"""syrk: product of a matrix with its transpose, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._precision import in_full_precision


@in_full_precision
def syrk(B: Tensor, A: Tensor, transpose: bool) -> None:
    """B := A A^T, or A^T A, symmetric to the last bit."""
    if transpose:
        A = A.mT
    product = A @ A.mT
    torch.add(product.tril(), product.tril(-1).mT, out=B)


@in_full_precision
def syrk_vjp(gA: Tensor, A: Tensor, gB: Tensor, transpose: bool) -> None:
    """gA := (gB + gB^T) A, or A (gB + gB^T)."""
    both = gB + gB.mT
    if transpose:
        torch.matmul(A, both, out=gA)
    else:
        torch.matmul(both, A, out=gA)
