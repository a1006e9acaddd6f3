"""inverse: the inverse of a square matrix, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _torch_lu
from lapgrad._fallback._lu import first_failure, status_of
from lapgrad._precision import in_full_precision


def inverse(B: Tensor, A: Tensor) -> tuple[int, int] | None:
    """B := A^-1, the identity where there is none. Returns the first (item, status)."""
    LU, pivots = _torch_lu.lu_factor(A)
    status = status_of(LU, A)
    failure = first_failure(status != 0, status)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    if failure is not None:
        LU = torch.where((status != 0)[..., None, None], identity, LU)
        pivots = torch.where(
            (status != 0)[..., None], torch.arange(1, A.shape[-1] + 1, device=A.device).int(), pivots
        )
    B.copy_(torch.linalg.lu_solve(LU, pivots, identity.expand_as(A)))
    return failure


@in_full_precision
def inverse_vjp(gA: Tensor, B: Tensor, gB: Tensor) -> None:
    """gA := -B^T gB B^T."""
    torch.matmul(B.mT @ gB, B.mT, out=gA)
    gA.neg_()
