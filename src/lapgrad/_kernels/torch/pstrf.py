"""pstrf: Cholesky factorisation with pivoting, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import find_first_failure
from lapgrad._torch.precision import in_full_precision


@in_full_precision
def pstrf(
    L: Tensor, pivots: Tensor, rank: Tensor, A: Tensor, tol: float | None, lower: bool
) -> tuple[int, int] | None:
    """L, pivots, rank := the factor of A's named triangle. Returns the first (item, -k): pivot k not finite.

    One column after the other, for all items of the batch at once; nothing is read back to the host before
    the last one.
    """
    n, most = A.shape[-1], L.shape[-1 if lower else -2]
    pivots.copy_(torch.arange(n, device=A.device))
    rank.zero_()
    if not L.numel():
        return None
    named = A.tril() if lower else A.triu().mT
    full = named + named.tril(-1).mT
    F = L if not lower else L.mT  # (*batch, most, n): columns of the factor
    F.zero_()
    left = full.diagonal(dim1=-2, dim2=-1).clone()
    # LAPACK's epsilon is the largest relative error of a rounding.
    unit = 0.5 * torch.finfo(A.dtype).eps
    least = n * unit * left.amax(-1, keepdim=True) if tol is None else torch.full_like(left[..., :1], tol)
    is_alive = torch.ones_like(least, dtype=torch.bool)
    status = torch.zeros_like(rank, dtype=torch.int32)
    for k in range(most):
        is_finite = left[..., k:].isfinite().all(-1, keepdim=True)
        status.copy_(torch.where((is_alive & ~is_finite).squeeze(-1), -(k + 1), status))
        chosen = left[..., k:].argmax(-1, keepdim=True) + k
        is_alive = is_alive & is_finite & (left.gather(-1, chosen) > least)
        chosen = torch.where(is_alive, chosen, k)
        _exchange(left, k, chosen)
        _exchange(pivots, k, chosen)
        _exchange(F, k, chosen.unsqueeze(-2))
        root = torch.where(is_alive, left[..., k : k + 1], 1.0).sqrt()
        row = torch.take_along_dim(full, pivots[..., k, None, None], -2).squeeze(-2)
        column = row.gather(-1, pivots)[..., k:]
        done = F[..., :k, k:]
        column = column - (done[..., :1].mT @ done).squeeze(-2)
        column = torch.where(is_alive, column / root, 0.0)
        column[..., :1] = torch.where(is_alive, root, 0.0)
        F[..., k, k:] = column
        left[..., k:] -= column.square()
        rank += is_alive.squeeze(-1)
    return find_first_failure(status != 0, status)


def _exchange(values: Tensor, k: int, other: Tensor) -> None:
    """Exchange entries k and ``other`` of the last dimension; ``other`` has one entry per item."""
    other = other.expand(*values.shape[:-1], 1)
    first, second = values[..., k : k + 1].clone(), values.gather(-1, other)
    values.scatter_(-1, other, first)
    values[..., k : k + 1] = second
