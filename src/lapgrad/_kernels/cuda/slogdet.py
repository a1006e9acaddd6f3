"""slogdet: sign and logarithm of a determinant, on CUDA."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import lu as _lu
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.torch import slogdet as _fallback
from lapgrad._torch.synchronisation import may_read

_SINGULAR = _lu_batch.NON_FINITE | _lu_batch.ZERO_PIVOT


@on_its_device
def slogdet(sign: Tensor, logabsdet: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    if not A.numel() or not _lu.serves(A):
        return _fallback.slogdet(sign, logabsdet, LU, pivots, A)
    cell = _items.get_status_cell(A)
    results = _lu_batch.Determinants(sign=sign.view(-1), logarithm=logabsdet.view(-1))
    _lu.compute_determinants(LU, pivots, A, cell, results)
    failure = _items.read_first_failure(cell)
    if failure is None or _lu_batch.serves(A):
        return failure
    return _fallback.slogdet(sign, logabsdet, LU, pivots, A)


@on_its_device
def slogdet_without_status(sign: Tensor, logabsdet: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> None:
    """``slogdet`` without waiting for the device: entries that are not finite are not reported."""
    results = _lu_batch.Determinants(sign=sign.view(-1), logarithm=logabsdet.view(-1))
    _lu.compute_determinants(LU, pivots, A, None, results)


@on_its_device
def slogdet_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> tuple[int, int] | None:
    """gA := weight A^-T, 0 where A is singular. Returns the first (item, status) of those with a weight."""
    target = _items.view_batch(gA)
    if not A.numel() or target is None or not _lu.serves(A):
        return _fallback.slogdet_vjp(gA, A, LU, pivots, weight)
    n, weights = A.shape[-1], weight.reshape(-1)
    if not _lu_batch.serves(A):
        return _pull_back_large(target, gA, A, LU, pivots, weight)
    cell = _items.get_status_cell(A)
    if n <= _thresholds.LU_IN_WARP:
        plan = _lu_batch.plan_small_inverse(
            target, _items.flatten_batch(A), transpose=True, weight=weights, reported=_SINGULAR, cell=cell
        )
    else:
        plan = _lu_batch.plan_inverse(
            target, LU.reshape(-1, n, n), pivots.reshape(-1, n), transpose=True, weight=weights,
            reported=_SINGULAR, cell=cell,
        )  # fmt: skip
    _launch.launch(*plan)
    return _items.read_first_failure(cell)


def _pull_back_large(
    target: Tensor, gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor
) -> tuple[int, int] | None:
    """``slogdet_vjp`` above order 128; ``target`` is gA with one leading dimension."""
    n = A.shape[-1]
    factors = LU.reshape(-1, n, n)
    singular = (factors.diagonal(dim1=-2, dim2=-1) == 0).any(-1)
    _lu.invert(target.mT, factors, pivots.reshape(-1, n))
    target.mul_(weight.reshape(-1)[:, None, None])
    if not may_read(A):
        target.masked_fill_(singular[:, None, None], 0.0)
    elif singular.any():
        return _fallback.slogdet_vjp(gA, A, LU, pivots, weight)
    return None
