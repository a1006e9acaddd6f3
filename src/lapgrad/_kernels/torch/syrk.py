"""syrk: product of a matrix with its transpose, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision


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


#: Order up to which both triangles are computed: small products are slow.
_WHOLE = {"cpu": 256}
_WHOLE_ELSEWHERE = 1024


@in_full_precision
def syrk_add(B: Tensor, A: Tensor) -> None:
    """The lower triangle of B := B + A A^T; parts of the upper one are overwritten. Matrices, not batches.

    The matrix is halved recursively, and only small blocks on the diagonal are computed whole.
    """
    n = len(B)
    if n <= _WHOLE.get(B.device.type, _WHOLE_ELSEWHERE):
        B.addmm_(A, A.mT)
        return
    half = n // 2
    B[half:, :half].addmm_(A[half:], A[:half].mT)
    syrk_add(B[:half, :half], A[:half])
    syrk_add(B[half:, half:], A[half:])
