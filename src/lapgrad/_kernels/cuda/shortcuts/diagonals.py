"""Diagonals and triangles: one launch each, and torch's own functions where a gradient is recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime.items import view_batch
from lapgrad._kernels.cuda.shortcuts.planned import Planned
from lapgrad._kernels.cuda.small import packing as _packing
from lapgrad._kernels.cuda.small import sumlogdiag as _sumlogdiag
from lapgrad._torch.layout import allocate_like


def plan_diagonal(d: Tensor) -> Planned | None:
    """The matrix with the diagonal d."""
    *batch, n = d.shape
    A, diagonals = d.new_empty((*batch, n, n)), view_batch(d.unsqueeze(-2))
    return None if diagonals is None else (A, _packing.plan_diagonals(A, diagonals.squeeze(-2)))


def make_diagonal(d: Tensor) -> Tensor:
    """Return the matrix with the diagonal d."""
    return torch.diag_embed(d)


def plan_extracted_diagonal(A: Tensor) -> Planned | None:
    """The diagonal of A."""
    d, matrices = A.new_empty(A.shape[:-1]), view_batch(A)
    return None if matrices is None else (d, _packing.plan_gathered_diagonals(d, matrices))


def extract_diagonal(A: Tensor) -> Tensor:
    """Return the diagonal of A, as a copy."""
    return torch.diagonal_copy(A, 0, -2, -1)


def plan_sum_of_logs(A: Tensor) -> Planned | None:
    """The sum of log |a_ii|."""
    s, matrices = A.new_empty(A.shape[:-2]), view_batch(A)
    return None if matrices is None else (s, _sumlogdiag.plan_sum(s, matrices))


def plan_gradient_of_logs(A: Tensor, gs: Tensor) -> Planned | None:
    """diag(gs / a_ii)."""
    gA, matrices, weights = allocate_like(A), view_batch(A), view_batch(gs[..., None, None])
    if matrices is None or weights is None:
        return None
    return gA, _sumlogdiag.plan_vjp(gA, matrices, weights[:, 0, 0])


def plan_mirrored(A: Tensor, lower: bool) -> Planned | None:
    """The symmetric matrix with A's named triangle."""
    B, matrices = allocate_like(A), view_batch(A)
    return None if matrices is None else (B, _packing.plan_mirrored_copy(B, matrices, lower))


def mirror(A: Tensor, lower: bool) -> Tensor:
    """Return the symmetric matrix with A's named triangle, in functions of torch."""
    return A.tril() + A.tril(-1).mT if lower else A.triu() + A.triu(1).mT


def plan_packed(A: Tensor, lower: bool) -> Planned | None:
    """The entries of a triangle of A as a vector."""
    *batch, n, _ = A.shape
    v, matrices = A.new_empty((*batch, n * (n + 1) // 2)), view_batch(A)
    if matrices is None:
        return None
    return v, _packing.plan_packing(v.view(len(matrices), 1, v.shape[-1]), matrices, 0, lower)


def plan_unpacked(v: Tensor, lower: bool) -> Planned | None:
    """The inverse of ``plan_packed``, with zeros in the other triangle."""
    *batch, length = v.shape
    n = int(((8 * length + 1) ** 0.5 - 1) / 2 + 0.5)
    packed = view_batch(v.unsqueeze(-2))
    if packed is None or n * (n + 1) // 2 != length:
        return None
    A = v.new_empty((*batch, n, n))
    return A, _packing.plan_unpacking(A.view(len(packed), n, n), packed, 0, lower)
