"""cuSOLVER's Cholesky factorisation, on the triangle where it is fast, and torch's for one matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime import solver as _solver

_TILE = 32
_THREADS = 256


def factorise_upper(A: Tensor, code: int) -> None:
    """Overwrite the upper triangle of each item (to cuSOLVER the lower one) with R, A = Rᵀ R.

    A is (n, n) or (items, n, n). LAPACK's codes, an int32 per item, are written to the address ``code``.
    """
    device, kind, (n, row) = A.get_device(), _solver.DATA_TYPES[A.dtype], (A.shape[-1], A.stride(-2))
    handle, choices = _solver.get_handle(device), _solver.get_parameters(device)
    items, step = (1, 0) if A.dim() == 2 else (A.shape[0], A.stride(0) * A.element_size())
    size, host_size = _solver.get_workspace_size(
        "xpotrf_buffer_size",
        (device, n, row, kind),
        handle,
        choices,
        _solver.LOWER,
        n,
        kind,
        A.data_ptr(),
        row,
        kind,
    )
    work, host_work = _solver.allocate_workspace(size, host_size, A)
    for item in range(items):
        _solver.get_routine("xpotrf")(
            handle, choices, _solver.LOWER, n, kind, A.data_ptr() + item * step, row, kind,
            work.data_ptr(), size, host_work.data_ptr(), host_size, code + 4 * item,
        )  # fmt: skip


def factorise_alone(L: Tensor, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """L := the factor of one matrix by torch's own routine, with few launches. Returns whether it failed.

    The host waits. A NaN in the other triangle counts as a failure, too, so the caller repeats a failed
    factorisation.
    """
    cell, n = _items.get_status_cell(A), A.shape[-1]
    if cell is None:
        return 0, 1
    target, tiles = L if lower else L.mT, -(-n // _TILE)
    # From here on the device has finished its work, or waits for the host.
    factor, code = torch.linalg.cholesky_ex(A if lower else A.mT)
    columns = factor if factor.stride(0) == 1 else factor.mT.contiguous().mT
    _launch.launch(
        "triangle", "place_factor<{T}>", L, (tiles, tiles), _THREADS, _TILE * (_TILE + 1) * L.element_size(),
        target.data_ptr(), *target.stride(), columns.data_ptr(), n, code.data_ptr(), cell.data_ptr(),
    )  # fmt: skip
    return _items.read_first_failure(cell)
