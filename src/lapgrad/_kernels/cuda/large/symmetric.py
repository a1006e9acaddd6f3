"""Eigenvalues and eigenvectors of symmetric matrices by cuSOLVER, batches by its batched routine.

``kernels/syevd_library.cu`` has the steps before and after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import solver as _solver
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

#: Threads of a block that reads a triangle, an entry each, or that finishes rows, a warp each.
_THREADS = 256

#: Inner products of eigenvectors may differ from those of an orthonormal basis by (this number + order) eps.
_ORTHONORMAL = 10


def decompose_batch(values: Tensor, rows: Tensor, status: Tensor, vectors: bool) -> None:
    """Overwrite ``rows``, (items, n, n), with eigenvectors as rows, or scratch if they are not wanted.

    The upper triangles of ``rows`` hold finite symmetric matrices; the solver may never return from others.
    values: (items, n), ascending. status: int32 (items), 0 for an item that has converged.
    """
    items, n, _ = rows.shape
    together = _thresholds.choose_eigenvalue_batch(items, n, rows.element_size())
    if _stream.is_capturing():
        together = max(items, 2)  # the routine for single matrices decides on the host how to go on
    if together <= items:
        _call_solver(values, rows, status, vectors, together)
        return
    more = [X.expand(together, *X.shape[1:]).contiguous() for X in (values, rows, status)]
    _call_solver(more[0], more[1], more[2], vectors, together)
    for target, source in zip((values, rows, status), more, strict=True):
        target.copy_(source[:items])


def _call_solver(values: Tensor, rows: Tensor, status: Tensor, vectors: bool, together: int) -> None:
    """``decompose_batch`` of ``together`` items at a time, fewer if their workspace would be too large."""
    device = rows.get_device()
    items, n, _ = rows.shape
    kind = _solver.DATA_TYPES[rows.dtype]
    handle = _solver.get_handle(device)
    problem = (
        _solver.get_parameters(device),
        _solver.WITH_VECTORS if vectors else _solver.VALUES_ONLY,
        _solver.LOWER,  # cuSOLVER reads the transpose
        n,
    )
    routine = "xsyevd" if together == 1 else "xsyev_batched"

    size = rows.element_size()

    def pack_operands(begin: int) -> tuple[int, ...]:
        matrices, places = rows.data_ptr() + begin * n * n * size, values.data_ptr() + begin * n * size
        return kind, matrices, n, kind, places, kind

    def get_workspace_sizes(count: int) -> tuple[int, int]:
        counts = () if together == 1 else (count,)
        key = (device, problem[1], n, kind, *counts)
        return _solver.get_workspace_size(
            f"{routine}_buffer_size", key, handle, *problem, *pack_operands(0), *counts
        )

    count = together
    most = _stream.get_memory(device) // _thresholds.SYEVD_WORKSPACE_PART
    while count > 1 and get_workspace_sizes(count)[0] > most:
        count = (count + 1) // 2
    on_device, on_host = get_workspace_sizes(count)
    device_memory, host_memory = _solver.allocate_workspace(on_device, on_host, rows)
    memory = (device_memory.data_ptr(), on_device, host_memory.data_ptr(), on_host)
    for begin in range(0, items, count):
        counts = () if together == 1 else (min(count, items - begin),)
        _solver.get_routine(routine)(
            handle, *problem, *pack_operands(begin), *memory, status.data_ptr() + 4 * begin, *counts
        )


def plan_reading(rows: Tensor, A: Tensor, lower: bool, spoilt: Tensor, cell: Tensor | None) -> Launch:
    """The launch that copies one triangle of A, (items, n, n), to the upper one of rows, and checks it."""
    items, n, _ = A.shape
    return (
        "syevd_library",
        "read_triangles<{T}>",
        A,
        (-(-A.numel() // _THREADS),),
        _THREADS,
        0,
        rows.data_ptr(),
        A.data_ptr(),
        *A.stride(),
        int(lower),
        spoilt.data_ptr(),
        get_address(cell),
        items,
        n,
    )


def plan_finishing(
    rows: Tensor | None, values: Tensor, status: Tensor, spoilt: Tensor, cell: Tensor | None
) -> Launch:
    """Return the launch that turns eigenvectors to the signs that are promised, and reports failed items."""
    return (
        "syevd_library",
        "finish_rows<{T}>",
        values,
        (-(-values.numel() // (_THREADS // 32)),),
        _THREADS,
        0,
        get_address(rows),
        values.data_ptr(),
        status.data_ptr(),
        spoilt.data_ptr(),
        get_address(cell),
        values.numel(),
        values.shape[-1],
    )


def plan_check(rows: Tensor, cell: Tensor | None) -> Launch:
    """Return the launch that checks whether the rows of a small contiguous matrix are orthonormal."""
    n = rows.shape[-1]
    allowed = (_ORTHONORMAL + n) * torch.finfo(rows.dtype).eps
    return (
        "syevd_library",
        "check_rows<{T}>",
        rows,
        (1,),
        _THREADS,
        0,
        rows.data_ptr(),
        allowed,
        get_address(cell),
        n,
    )
