"""Diagonals and triangles."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.copyltu import copyltu
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small.packing import plan_whole_packing, plan_whole_unpacking
from lapgrad._kernels.cuda.small.sumlogdiag import plan_sum, plan_vjp
from lapgrad._torch.layout import allocate_like


def make_diagonal(d: Tensor) -> Tensor:
    """The matrix with the diagonal d."""
    return torch.diag_embed(d)


def extract_diagonal(A: Tensor) -> Tensor:
    """The diagonal of A, as a copy."""
    return torch.diagonal_copy(A, 0, -2, -1)


@on_its_device
def sum_logs(A: Tensor) -> Tensor:
    """The sum of log |a_ii|."""
    s = A.new_empty(A.shape[:-2])
    _launch.launch(*plan_sum(s, flatten_batch(A)))
    return s


@on_its_device
def pull_back_logs(A: Tensor, gs: Tensor) -> Tensor:
    """diag(gs / a_ii)."""
    gA = allocate_like(A)
    _launch.launch(*plan_vjp(gA, flatten_batch(A), gs if gs.dim() == 1 else gs.reshape(-1)))
    return gA


def mirror(A: Tensor, lower: bool) -> Tensor:
    """The symmetric matrix with A's named triangle."""
    B = allocate_like(A)
    copyltu(B, A, lower)
    return B


def mirror_recorded(A: Tensor, lower: bool) -> Tensor:
    """``mirror`` in functions of torch."""
    return A.tril() + A.tril(-1).mT if lower else A.triu() + A.triu(1).mT


@on_its_device
def pack(A: Tensor, lower: bool) -> Tensor:
    """The entries of a triangle of A as a vector."""
    *batch, n, _ = A.shape
    v = A.new_empty((*batch, n * (n + 1) // 2))
    _launch.launch(*plan_whole_packing(v, flatten_batch(A), lower))
    return v


@on_its_device
def unpack(v: Tensor, lower: bool) -> Tensor | None:
    """The inverse of ``pack``, with zeros in the other triangle."""
    *batch, length = v.shape
    n = int(((8 * length + 1) ** 0.5 - 1) / 2 + 0.5)
    if n * (n + 1) // 2 != length:
        return None
    A = v.new_empty((*batch, n, n))
    _launch.launch(*plan_whole_unpacking(flatten_batch(A), v.contiguous(), lower))
    return A
