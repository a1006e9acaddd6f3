"""inverse: the inverse of a square matrix, in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import find_first_failure, find_status
from lapgrad._torch import lu as _torch_lu
from lapgrad._torch.precision import in_full_precision


def inverse(B: Tensor, A: Tensor) -> tuple[int, int] | None:
    """B := A^-1, the identity where there is none. Returns the first (item, status).

    The status is that of the factorisation, or n + 1 where the inverse is not finite.
    """
    X, status = _invert(A)
    failure = find_first_failure(status != 0, status)
    if failure is not None:
        # Sums of entries near the ends of the range overflow on the way to an inverse that does not.
        scale = _choose_range_scale(A)
        again, status = _invert(A * scale)
        again *= scale
        status = torch.where((status == 0) & _overflows(again), A.shape[-1] + 1, status)
        identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        X = torch.where((status != 0)[..., None, None], identity, again)
        failure = find_first_failure(status != 0, status)
    B.copy_(X)
    return failure


def _invert(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return A^-1 and its status: that of the factorisation, or n + 1 where the inverse is not finite."""
    n = A.shape[-1]
    LU, pivots = _torch_lu.lu_factor(A)
    status = find_status(LU, A)
    identity = torch.eye(n, dtype=A.dtype, device=A.device)
    X = torch.linalg.lu_solve(LU, pivots, identity.expand_as(A))
    return X, torch.where((status == 0) & _overflows(X), n + 1, status)


def _overflows(X: Tensor) -> Tensor:
    """Return for each item whether it has an entry that is not finite, without a matrix of truth values."""
    if not X.numel():
        return X.new_zeros(X.shape[:-2], dtype=torch.bool)
    return ~torch.linalg.vector_norm(X, math.inf, dim=(-2, -1)).isfinite()


def _choose_range_scale(A: Tensor) -> Tensor:
    """Return a power of two per item, (*batch, 1, 1): 1 unless entries are near the ends of the range."""
    factor = 2.0**32
    largest, limit = A.abs().amax((-2, -1), keepdim=True), torch.finfo(A.dtype).max / factor
    one = torch.ones_like(largest)
    return torch.where(largest > limit, 1 / factor, torch.where(largest < 1 / limit, factor, one))


@in_full_precision
def inverse_vjp(gA: Tensor, B: Tensor, gB: Tensor) -> None:
    """gA := -B^T gB B^T."""
    torch.matmul(B.mT @ gB, B.mT, out=gA)
    gA.neg_()
