"""pstrf: Cholesky factorisation with pivoting, on CUDA: own kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import potrf as _potrf
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import pstrf as _pstrf_batch
from lapgrad._kernels.torch import pstrf as _fallback


@on_its_device
def pstrf(
    L: Tensor, pivots: Tensor, rank: Tensor, A: Tensor, tol: float | None, lower: bool
) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``; the host waits once, at the end."""
    n, items = A.shape[-1], A.shape[:-2].numel()
    target = _items.view_batch(L if lower else L.mT)
    too_many = n > _thresholds.PSTRF_IN_BLOCK and items > _thresholds.MOST_ITEMS
    if target is None or not L.numel() or too_many:
        return _fallback.pstrf(L, pivots, rank, A, tol, lower)
    cell = _items.get_status_cell(A)
    source = _items.flatten_batch(A if lower else A.mT)
    for plan in _pstrf_batch.plan_factorisation(
        target, pivots.view(items, n), rank.view(items), source, tol, cell
    ):
        _launch.launch(*plan)
    return _items.read_first_failure(cell)


def serves_pstrf_vjp(L: Tensor) -> bool:
    """Whether ``pstrf_vjp`` takes a factor of this shape: a square one."""
    return L.numel() > 0 and L.shape[-1] == L.shape[-2]


@on_its_device
def pstrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, pivots: Tensor, rank: Tensor) -> None:
    """gA := the gradient of a square lower factor, for fixed pivots and rank; see ``ops/pstrf.py``."""
    M, G, P = (torch.empty(L.shape, dtype=L.dtype, device=L.device) for _ in range(3))
    factor, given = _items.flatten_batch(L), _items.flatten_batch(gL)
    _launch.launch(*_pstrf_batch.plan_vjp_begin(M, G, factor, given, rank.contiguous()))
    _potrf.potrf_vjp(P, M, G, True, None)
    _launch.launch(*_pstrf_batch.plan_vjp_end(gA, P, pivots.contiguous()))
