"""det: determinant and cofactors, on CUDA."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._formulas.cofactors import replace_cofactors
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import lu as _lu
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.torch import det as _fallback

_ALL = _lu_batch.NON_FINITE | _lu_batch.ZERO_PIVOT | _lu_batch.OVERFLOW


@on_its_device
def det(d: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    if not A.numel() or not _lu.serves(A):
        return _fallback.det(d, LU, pivots, A)
    cell = _items.get_status_cell(A)
    _lu.compute_determinants(LU, pivots, A, cell, _lu_batch.Determinants(d.view(-1)))
    failure = _items.read_first_failure(cell)
    if failure is None or _lu_batch.serves(A):
        return failure
    return _fallback.det(d, LU, pivots, A)


@on_its_device
def det_without_status(d: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> None:
    """``det`` without waiting for the device: entries that are not finite are not reported."""
    _lu.compute_determinants(LU, pivots, A, None, _lu_batch.Determinants(d.view(-1)))


@on_its_device
def det_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> None:
    """gA := weight times the matrix of cofactors, as ``det_vjp`` of ``_kernels.torch`` does."""
    target = _items.view_batch(gA)
    if not A.numel() or target is None or not _lu.serves(A):
        _fallback.det_vjp(gA, A, LU, pivots, weight)
        return
    n, weights = A.shape[-1], weight.reshape(-1)
    if not _lu_batch.serves(A):
        _pull_back_large(target, gA, A, LU, pivots, weight)
        return
    cell, info = _items.get_status_cell(A), A.new_zeros(len(target), dtype=torch.int32)
    if n <= _thresholds.LU_IN_WARP:
        plan = _lu_batch.plan_small_inverse(
            target, _items.flatten_batch(A), transpose=True, weight=weights, by_determinant=True,
            reported=_ALL, info=info, cell=cell,
        )  # fmt: skip
    else:
        plan = _lu_batch.plan_inverse(
            target, LU.reshape(-1, n, n), pivots.reshape(-1, n), transpose=True, weight=weights,
            by_determinant=True, reported=_ALL, info=info, cell=cell,
        )  # fmt: skip
    _launch.launch(*plan)
    if _items.read_first_failure(cell) is not None:
        replace_cofactors(gA, A, weight, (info != 0).view(A.shape[:-2]))


def _pull_back_large(
    target: Tensor, gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor
) -> None:
    """``det_vjp`` above order 128; ``target`` is gA with one leading dimension."""
    n = A.shape[-1]
    factors, exchanges = LU.reshape(-1, n, n), pivots.reshape(-1, n)
    mantissa = A.new_empty(len(factors))
    exponent = torch.empty(len(factors), dtype=torch.int32, device=A.device)
    _lu.finish(factors, exchanges, None, mantissa=mantissa, exponent=exponent)
    _lu.invert(target.mT, factors, exchanges)
    overflows = ~torch.linalg.vector_norm(target, math.inf, dim=(-2, -1)).isfinite()
    target.mul_((weight.reshape(-1) * mantissa)[:, None, None])
    _lu.scale_items(target, target, exponent)
    replace_cofactors(gA, A, weight, ((mantissa == 0) | overflows).view(A.shape[:-2]))
