"""syevd: eigenvalues and eigenvectors of a symmetric matrix, on CUDA.

Small matrices have a kernel of their own, and medium ones use cuSOLVER's batched routine. torch decomposes
large ones one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import symmetric as _symmetric
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import syevd as _syevd_batch
from lapgrad._kernels.cuda.small import syevd_vjp_tiles as _syevd_vjp_tiles
from lapgrad._kernels.cuda.small.gesvd import make_contiguous
from lapgrad._kernels.cuda.small.ties import note_distinct
from lapgrad._kernels.torch import syevd as _fallback


@on_its_device
def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    failure = _decompose(eigenvalues, U, A, lower)
    if failure is None and U is not None and A.requires_grad and eigenvalues.is_contiguous():
        note_distinct(eigenvalues)
    return failure


def _decompose(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    if _syevd_batch.serves(A):
        # cuSOLVER's vectors of a matrix of low rank may not be orthogonal: then the kernel computes again.
        if _is_faster_alone(A) and _decompose_batch(eigenvalues, U, A, lower, verified=True) is None:
            return None
        return _syevd_batch.syevd(eigenvalues, U, A, lower)
    if A.shape[-1] <= _thresholds.SYEVD_BATCHED and A.numel() > 0:
        return _decompose_batch(eigenvalues, U, A, lower)
    return _fallback.syevd(eigenvalues, U, A, lower)


def _is_faster_alone(A: Tensor) -> bool:
    """Whether cuSOLVER is faster than the kernel for small matrices: for one of float64."""
    alone = A.dim() == 2 or A.shape[:-2].numel() == 1
    alone = alone and A.dtype == torch.float64 and A.shape[-1] >= _thresholds.SYEVD_ALONE
    # That part of cuSOLVER cannot be captured, and its result has to be checked.
    return alone and _items.get_status_cell(A) is not None


def serves_syevd_vjp(U: Tensor, gU: Tensor | None, slope: Tensor | None) -> bool:
    """Return whether kernels compute this gradient: if cotangents of all rows are given, or U is not large.

    Else it is a few products with the last rows only, which the operator composes.
    """
    n = U.shape[-1]
    whole = (gU is None or gU.shape[-2] == n) and (slope is None or slope.shape[-1] == n)
    return U.numel() > 0 and (whole or n <= _thresholds.SYEVD_VJP_EXTENDED)


@on_its_device
def syevd_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Any:
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None.

    Cotangents of the last rows only are extended by zeros.
    """
    n = U.shape[-1]
    if gU is not None and gU.shape[-2] < n:
        gU = torch.cat([gU.new_zeros((*gU.shape[:-2], n - gU.shape[-2], n)), gU], -2)
    if slope is not None and slope.shape[-1] < n:
        slope = torch.cat([slope.new_zeros((*slope.shape[:-1], n - slope.shape[-1])), slope], -1)
    kernels = _syevd_batch if _syevd_batch.serves_vjp(U) else _syevd_vjp_tiles
    return kernels.syevd_vjp(gA, U, eigenvalues, gU, slope, degeneracy, tol)


def _decompose_batch(
    eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool, verified: bool = False
) -> tuple[int, int] | None:
    """``syevd`` by cuSOLVER's batched routine, which replaces a triangle of A by the eigenvectors.

    They are columns to cuSOLVER, and rows of our row-major memory. ``verified``: vectors of one small matrix
    that are not orthonormal are reported with code 2.
    """
    n, items = A.shape[-1], A.shape[:-2].numel()
    cell, source = _items.get_status_cell(A), flatten_batch(A)
    values = make_contiguous(eigenvalues)
    rows = torch.empty(A.shape, dtype=A.dtype, device=A.device) if U is None else make_contiguous(U)
    spoilt, status = torch.zeros((2, items), dtype=torch.int32, device=A.device)
    _launch.launch(*_symmetric.plan_reading(rows, source, lower, spoilt, cell))
    _symmetric.decompose_batch(values.view(items, n), rows.view(items, n, n), status, vectors=U is not None)
    _launch.launch(*_symmetric.plan_finishing(None if U is None else rows, values, status, spoilt, cell))
    if verified and U is not None:
        _launch.launch(*_symmetric.plan_check(rows, cell))
    for target, filled in ((eigenvalues, values), (U, rows)):
        if target is not None and target is not filled:
            target.copy_(filled)
    return _items.read_first_failure(cell)
