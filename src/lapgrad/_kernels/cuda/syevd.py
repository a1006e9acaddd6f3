"""syevd: eigenvalues and eigenvectors of a symmetric matrix, on CUDA.

Small matrices have a kernel of their own, and batches of medium ones use cuSOLVER's batched routine. torch
decomposes the others one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._formulas.gaps import fix_signs
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import solver as _solver
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import syevd as _syevd_batch
from lapgrad._kernels.torch import syevd as _fallback


@on_its_device
def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    if _syevd_batch.serves(A):
        return _syevd_batch.syevd(eigenvalues, U, A, lower)
    if 0 < A.shape[-1] <= _thresholds.SYEVD_BATCHED and A.shape[:-2].numel() > 1:
        return _decompose_batch(eigenvalues, U, A, lower)
    return _fallback.syevd(eigenvalues, U, A, lower)


def serves_syevd_vjp(U: Tensor, gU: Tensor | None, slope: Tensor | None) -> bool:
    """Returns whether the kernel computes this gradient: of small matrices, with cotangents of all rows.

    Else it is a few products, which the operator composes.
    """
    return _syevd_batch.serves_vjp(U, gU, slope)


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
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None."""
    return _syevd_batch.syevd_vjp(gA, U, eigenvalues, gU, slope, degeneracy, tol)


def _decompose_batch(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """``syevd`` by cusolverDnXsyevBatched, which overwrites a copy of A with the eigenvectors.

    They are columns to cuSOLVER, and rows of our row-major memory.
    """
    n, items = A.shape[-1], A.shape[:-2].numel()
    source = A.reshape(items, n, n)
    rows = source.tril() if lower else source.triu()
    spoilt = ~rows.isfinite().flatten(-2).all(-1)
    rows.masked_fill_(spoilt[:, None, None], 0.0)  # the solver may never return from NaN or infinity
    values = torch.empty((items, n), dtype=A.dtype, device=A.device)
    status = torch.empty(items, dtype=torch.int32, device=A.device)
    _solve(values, rows, status, lower, vectors=U is not None)
    values.masked_fill_(spoilt[:, None], float("nan"))
    eigenvalues.copy_(values.view(eigenvalues.shape))
    if U is not None:
        fix_signs(rows)
        U.copy_(rows.view(U.shape))
    if _stream.is_capturing():
        return None
    codes = torch.where(values.isfinite().all(-1), (status != 0).int(), -1)
    return _find_first_failure(codes)


def _solve(values: Tensor, rows: Tensor, status: Tensor, lower: bool, vectors: bool) -> None:
    """Overwrites ``rows``, triangles of symmetric matrices, with eigenvectors, or scratch if not wanted."""
    device = rows.get_device()
    items, n, _ = rows.shape
    kind = _solver.DATA_TYPES[rows.dtype]
    handle = _solver.get_handle(device)
    problem = (
        _solver.get_parameters(device),
        _solver.WITH_VECTORS if vectors else _solver.VALUES_ONLY,
        _solver.UPPER if lower else _solver.LOWER,  # of the transpose, which is what cuSOLVER sees
        n,
    )

    def pack_operands(begin: int) -> tuple[int, ...]:
        return kind, rows[begin].data_ptr(), n, kind, values[begin].data_ptr(), kind

    def get_workspace_sizes(count: int) -> tuple[int, int]:
        sizes: tuple[int, int] = _solver.get_routine("xsyev_batched_buffer_size")(
            handle, *problem, *pack_operands(0), count
        )
        return sizes

    together = items
    while together > 1 and get_workspace_sizes(together)[0] > _thresholds.SYEVD_WORKSPACE:
        together = (together + 1) // 2
    on_device, on_host = get_workspace_sizes(together)
    device_memory, host_memory = _solver.allocate_workspace(on_device, on_host, rows)
    memory = (device_memory.data_ptr(), on_device, host_memory.data_ptr(), on_host)
    for begin in range(0, items, together):
        count = min(together, items - begin)
        _solver.get_routine("xsyev_batched")(
            handle, *problem, *pack_operands(begin), *memory, status[begin].data_ptr(), count
        )


def _find_first_failure(codes: Tensor) -> tuple[int, int] | None:
    """(item, code) of the first code that is not 0; None, after one read from the device, if all are."""
    if not bool(codes.any()):
        return None
    item = int((codes != 0).int().argmax())
    return item, int(codes[item])
