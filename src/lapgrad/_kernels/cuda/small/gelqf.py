"""gelqf of batches of matrices with up to 128 rows and columns: Householder reflections in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import (
    Geometry,
    Launch,
    flatten_batch,
    get_address,
    pad_columns,
    view_batch,
)
from lapgrad._kernels.cuda.small.triangular import plan_application
from lapgrad._kernels.torch import gelqf as _fallback

#: Threads of a block with several matrices.
_THREADS = 128

#: Columns and rows of a matrix that one lane holds: as many as fit into its registers beside the row of the
#: reflection. Every warp computes every reflection, so few warps with many rows waste less.
_COLUMNS_OF_LANE = 8
_ROWS_OF_LANE = 4


_PANEL = 16


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    return (
        max(A.shape[-2:]) <= _thresholds.GELQF_SMALL
        and A.numel() > 0
        and A.dtype in (torch.float32, torch.float64)
    )


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    lower, rest = view_batch(L), None if Q is None else view_batch(Q)
    if lower is None or (rest is None) != (Q is None):
        return _fallback.gelqf(L, Q, A, positive)
    cell = _items.get_status_cell(A)
    _launch.launch(*plan_factorisation(lower, rest, flatten_batch(A), positive, cell))
    return _items.read_first_failure(cell)


def serves_vjp(Q: Tensor, L: Tensor) -> bool:
    """Whether ``gelqf_vjp`` takes these factors: of wide or square matrices, if a block has the memory."""
    m, n = L.shape[-2], Q.shape[-1]
    return (
        m == Q.shape[-2]
        and (
            n <= _thresholds.GELQF_SMALL
            or (m <= _PANEL and L.shape[:-2].numel() >= _thresholds.GELQF_WIDE_MANY)
        )
        and L.numel() > 0
        and _items.has_block_memory(_count_vjp_bytes(L), L)
    )


def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """Same as in ``_kernels.torch``, for operands that ``serves_vjp`` accepts."""
    target = view_batch(gA)
    if target is None:
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    of_q, of_l = None if gQ is None else flatten_batch(gQ), None if gL is None else flatten_batch(gL)
    _launch.launch(*plan_vjp(target, flatten_batch(Q), flatten_batch(L), of_q, of_l))


def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    """Same as in ``_kernels.torch`` if ``serves_vjp(A, L)``: ``gelqf_vjp`` with Q = L^-1 A."""
    target = view_batch(gA)
    if target is None:
        _fallback.gelqf_l_vjp(gA, A, L, gL)
        return
    source, lower = flatten_batch(A), flatten_batch(L)
    Q = torch.empty_like(source, memory_format=torch.contiguous_format)
    _launch.launch(
        *plan_application(
            Q, lower, source, lower=True, transpose=False, rightside=False, solve=True, cell=None
        )
    )
    _launch.launch(*plan_vjp(target, Q, lower, None, flatten_batch(gL)))


def find_dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for factors of any size."""
    cell = _items.get_status_cell(L)
    if cell is not None and relative_to_largest and L.shape[-1] > _thresholds.GELQF_SMALL:
        # In the kernel each row would read the whole diagonal.
        return _fallback.find_dependent_row(L, tolerance, relative_to_largest)
    if cell is None or not L.numel():
        return None
    _launch.launch(*plan_dependent_row_search(flatten_batch(L), tolerance, relative_to_largest, cell))
    return _items.read_first_failure(cell)


def find_dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    """Same as in ``_kernels.torch``: the host waits for the check alone, not for later launches."""
    if relative_to_largest or not L.numel():
        found = find_dependent_row(L, tolerance, relative_to_largest)
        return lambda: found
    status = _items.DeferredStatus.acquire(L)
    if status is None:
        return _items.report_no_failure
    _launch.launch(*plan_dependent_row_search(flatten_batch(L), tolerance, False, status.cell))
    return status.send()


def plan_factorisation(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool, cell: Tensor | None) -> Launch:
    """Return the launch that factors."""
    items, m, n = A.shape
    orthogonal = (0, 0, 0, 0) if Q is None else (Q.data_ptr(), *Q.stride())
    operands = (L.data_ptr(), *L.stride(), *orthogonal, A.data_ptr(), *A.stride())
    sizes = (m, n, items) if max(m, n) <= _thresholds.GELQF_IN_GROUP else (m, n)
    name, grid, threads, shared = _choose_factor_geometry(items, m, n, A.dtype)
    return "gelqf_batch", name, A, grid, threads, shared, *operands, *sizes, int(positive), get_address(cell)


@functools.lru_cache(maxsize=4096)
def _choose_factor_geometry(items: int, m: int, n: int, dtype: torch.dtype) -> Geometry:
    if max(m, n) <= _thresholds.GELQF_IN_GROUP:
        rows, columns = _items.choose_lanes(m), _items.choose_lanes(n)
        groups = _THREADS // rows
        shared = groups * _items.compute_tile_stride(rows, columns, dtype) * dtype.itemsize
        return f"factor_small<{{T}}, {rows}, {columns}>", (-(-items // groups),), _THREADS, shared
    lanes = 4 if n <= 32 else 8 if n <= 64 else 16
    threads = -(-(-(-m // _ROWS_OF_LANE) * lanes) // 32) * 32
    shared = (4 * lanes * _COLUMNS_OF_LANE + 2) * dtype.itemsize + 8
    return f"factor_medium<{{T}}, {lanes}, {_COLUMNS_OF_LANE}, {_ROWS_OF_LANE}>", (items,), threads, shared


def plan_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Launch:
    """Return the launch that computes the gradient."""
    items, m, n = Q.shape
    operands: list[int] = []
    for operand in (gA, Q, L, gQ, gL):
        operands += (0, 0, 0, 0) if operand is None else (operand.data_ptr(), *operand.stride())
    threads = max(32 if n <= _thresholds.GELQF_SMALL else _THREADS, 2 * _round_to_panels(m))
    return "gelqf_vjp_batch", "pull_back<{T}>", L, (items,), threads, _count_vjp_bytes(L), *operands, m, n


def plan_dependent_row_search(L: Tensor, tolerance: float, relative_to_largest: bool, cell: Tensor) -> Launch:
    """Return the launch that reports rows without a derivative."""
    items, _, rank = L.shape
    lanes = 8 if rank <= 64 else 32
    grid = (-(-items * rank * lanes // _THREADS),)
    operands = (L.data_ptr(), *L.stride(), rank, items, float(tolerance), int(relative_to_largest))
    name = f"find_dependent_rows<{{T}}, {lanes}>"
    return "gelqf_vjp_batch", name, L, grid, _THREADS, 0, *operands, cell.data_ptr()


def _round_to_panels(m: int) -> int:
    return -(-m // _PANEL) * _PANEL


def _count_vjp_bytes(L: Tensor) -> int:
    """Bytes for L, Z, two chunks of 16 columns and the diagonal."""
    size = _round_to_panels(L.shape[-2])
    return size * (2 * pad_columns(size, L.dtype) + 2 * pad_columns(_PANEL, L.dtype) + 1) * L.element_size()
