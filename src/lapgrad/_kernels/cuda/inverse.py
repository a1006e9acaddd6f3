"""inverse: the inverse of a square matrix, on CUDA: by LU factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import lu as _lu
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.torch import inverse as _fallback
from lapgrad._torch.precision import in_full_precision

_ALL = _lu_batch.NON_FINITE | _lu_batch.ZERO_PIVOT | _lu_batch.OVERFLOW


@on_its_device
def inverse(B: Tensor, A: Tensor) -> tuple[int, int] | None:
    if not A.numel() or not _lu.serves(A):
        return _fallback.inverse(B, A)
    # A is needed again where the inverse fails, or overflows on the way.
    source = A.clone() if B.data_ptr() == A.data_ptr() else A
    matrices, target = _items.flatten_batch(source), _items.view_batch(B)
    inverses = torch.empty_like(matrices, memory_format=torch.contiguous_format) if target is None else target
    cell = _items.get_status_cell(A)
    _invert(inverses, matrices, cell)
    if _items.read_first_failure(cell) is not None:
        return _fallback.inverse(B, source)
    if target is None:
        B.copy_(inverses.view(B.shape))
    return None


@on_its_device
def inverse_with_status(B: Tensor, info: Tensor, A: Tensor) -> None:
    """B := A⁻¹, and info (int32, 0 before) := LAPACK's status, without waiting for the device.

    For what ``serves_gesv_with_status`` names.
    """
    target, matrices, codes = _items.view_batch(B), _items.flatten_batch(A), info.view(-1)
    assert target is not None
    items, n, _ = matrices.shape
    zero_pivot = _lu_batch.ZERO_PIVOT
    if n <= _thresholds.LU_IN_WARP:
        plan = _lu_batch.plan_small_inverse(target, matrices, reported=zero_pivot, info=codes, cell=None)
        _launch.launch(*plan)
        return
    LU = torch.empty_like(matrices, memory_format=torch.contiguous_format)
    pivots = A.new_empty(items, n, dtype=torch.int32)
    _launch.launch(*_lu_batch.plan_factorisation(matrices, LU=LU, pivots=pivots, cell=None))
    plan = _lu_batch.plan_inverse(target, LU, pivots, reported=zero_pivot, info=codes, cell=None)
    _launch.launch(*plan)


def _invert(B: Tensor, A: Tensor, cell: Tensor | None) -> None:
    """B := A⁻¹; items without a finite one are reported."""
    items, n, _ = A.shape
    small = _lu_batch.serves(A)
    if small and n <= _thresholds.LU_IN_WARP:
        _launch.launch(*_lu_batch.plan_small_inverse(B, A, reported=_ALL, cell=cell))
        return
    LU = torch.empty_like(A, memory_format=torch.contiguous_format)
    pivots = A.new_empty(items, n, dtype=torch.int32)
    if small:
        _launch.launch(*_lu_batch.plan_factorisation(A, LU=LU, pivots=pivots, cell=cell))
        _launch.launch(*_lu_batch.plan_inverse(B, LU, pivots, reported=_ALL, cell=cell))
        return
    _lu.factorise(LU, pivots, A)
    _lu.invert(B, LU, pivots)
    if cell is not None:
        _lu.finish(LU, pivots, cell, A=A, X=B, strict=True)


@on_its_device
@in_full_precision
def inverse_vjp(gA: Tensor, B: Tensor, gB: Tensor) -> None:
    """gA := -B^T gB B^T."""
    target = _items.view_batch(gA)
    if target is None or not B.numel():
        _fallback.inverse_vjp(gA, B, gB)
        return
    turned = _items.flatten_batch(B).mT
    torch.baddbmm(target, turned @ _items.flatten_batch(gB), turned, beta=0, alpha=-1, out=target)
