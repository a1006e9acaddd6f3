"""gelqf of batches of matrices with up to 128 rows and columns: Householder reflections in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Geometry, Launch, address, padded, readable, writable
from lapgrad._kernels.cuda.small.triangular import applying
from lapgrad._kernels.torch import gelqf as _fallback

LARGEST = 128

#: Up to this many rows and columns a matrix has 4, 8 or 16 lanes of a warp, above it a block. The code for a
#: step is written out for each column that a lane has: 32 of them take seconds to compile, and no longer
#: fits the instruction cache.
LARGEST_IN_GROUP = 16

#: Threads of a block with several matrices.
_THREADS = 128

#: Columns of a matrix that one lane has, and rows: what fits into its registers together with the row
#: reflected. Every warp works out every reflection for itself, so few warps with many rows waste less.
_COLUMNS_OF_LANE = 8
_ROWS_OF_LANE = 4


_PANEL = 16


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    return max(A.shape[-2:]) <= LARGEST and A.numel() > 0 and A.dtype in (torch.float32, torch.float64)


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    """As ``_fallback.gelqf``, for what ``serves`` takes."""
    lower, rest = writable(L), None if Q is None else writable(Q)
    if lower is None or (rest is None) != (Q is None):
        return _fallback.gelqf(L, Q, A, positive)
    cell = _items.first_failure_cell(A)
    _launch.launch(*factoring(lower, rest, readable(A), positive, cell))
    return _items.first_failure(cell)


def serves_vjp(Q: Tensor, L: Tensor) -> bool:
    """Whether ``gelqf_vjp`` takes these factors: of wide or square matrices, if a block has the memory."""
    m, n = L.shape[-2], Q.shape[-1]
    return m == Q.shape[-2] and n <= LARGEST and L.numel() > 0 and _items.fits(_vjp_memory(L), L)


def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """As ``_fallback.gelqf_vjp``, for what ``serves_vjp`` takes."""
    target = writable(gA)
    if target is None:
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    of_q, of_l = None if gQ is None else readable(gQ), None if gL is None else readable(gL)
    _launch.launch(*pulling_back(target, readable(Q), readable(L), of_q, of_l))


def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    """As ``_fallback.gelqf_l_vjp``, for what ``serves_vjp(A, L)`` takes: Q = L^-1 A, then as above."""
    target = writable(gA)
    if target is None:
        _fallback.gelqf_l_vjp(gA, A, L, gL)
        return
    source, lower = readable(A), readable(L)
    Q = torch.empty_like(source, memory_format=torch.contiguous_format)
    _launch.launch(*applying(Q, lower, source, True, False, False, True, None))
    _launch.launch(*pulling_back(target, Q, lower, None, readable(gL)))


def dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    """As ``_fallback.dependent_row``, for factors of any size."""
    cell = _items.first_failure_cell(L)
    if cell is not None and relative_to_largest and L.shape[-1] > LARGEST:
        # Every row would go through the whole diagonal.
        return _fallback.dependent_row(L, tolerance, relative_to_largest)
    if cell is None or not L.numel():
        return None
    _launch.launch(*finding_dependent_rows(readable(L), tolerance, relative_to_largest, cell))
    return _items.first_failure(cell)


def dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    """As ``_fallback.dependent_row_later``: the host waits for the answer alone, not for what comes after."""
    if relative_to_largest or not L.numel():
        found = dependent_row(L, tolerance, relative_to_largest)
        return lambda: found
    question = _items.Question.about(L)
    if question is None:
        return _items.no_failure
    _launch.launch(*finding_dependent_rows(readable(L), tolerance, False, question.cell))
    return question.sent()


def factoring(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool, cell: Tensor | None) -> Launch:
    """The launch that factors."""
    items, m, n = A.shape
    orthogonal = (0, 0, 0, 0) if Q is None else (Q.data_ptr(), *Q.stride())
    operands = (L.data_ptr(), *L.stride(), *orthogonal, A.data_ptr(), *A.stride())
    sizes = (m, n, items) if max(m, n) <= LARGEST_IN_GROUP else (m, n)
    name, grid, threads, shared = _factor_geometry(items, m, n, A.dtype)
    return "gelqf_batch", name, A, grid, threads, shared, *operands, *sizes, int(positive), address(cell)


@functools.lru_cache(maxsize=4096)
def _factor_geometry(items: int, m: int, n: int, dtype: torch.dtype) -> Geometry:
    if max(m, n) <= LARGEST_IN_GROUP:
        rows, columns = _items.lanes_for(m), _items.lanes_for(n)
        groups = _THREADS // rows
        shared = groups * _items.tile_stride(rows, columns, dtype) * dtype.itemsize
        return f"factor_small<{{T}}, {rows}, {columns}>", (-(-items // groups),), _THREADS, shared
    lanes = 4 if n <= 32 else 8 if n <= 64 else 16
    threads = -(-(-(-m // _ROWS_OF_LANE) * lanes) // 32) * 32
    shared = (4 * lanes * _COLUMNS_OF_LANE + 2) * dtype.itemsize + 8
    return f"factor_medium<{{T}}, {lanes}, {_COLUMNS_OF_LANE}, {_ROWS_OF_LANE}>", (items,), threads, shared


def pulling_back(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Launch:
    """The launch that pulls back."""
    items, m, n = Q.shape
    operands: list[int] = []
    for operand in (gA, Q, L, gQ, gL):
        operands += (0, 0, 0, 0) if operand is None else (operand.data_ptr(), *operand.stride())
    threads = max(32, 2 * _size(m))
    return "gelqf_vjp_batch", "pull_back<{T}>", L, (items,), threads, _vjp_memory(L), *operands, m, n


def finding_dependent_rows(L: Tensor, tolerance: float, relative_to_largest: bool, cell: Tensor) -> Launch:
    """The launch that reports rows without a derivative."""
    items, _, rank = L.shape
    lanes = 8 if rank <= 64 else 32
    grid = (-(-items * rank * lanes // _THREADS),)
    operands = (L.data_ptr(), *L.stride(), rank, items, float(tolerance), int(relative_to_largest))
    name = f"find_dependent_rows<{{T}}, {lanes}>"
    return "gelqf_vjp_batch", name, L, grid, _THREADS, 0, *operands, cell.data_ptr()


def _size(m: int) -> int:
    return -(-m // _PANEL) * _PANEL


def _vjp_memory(L: Tensor) -> int:
    """Bytes for L, Z, two chunks of 16 columns and the diagonal."""
    size = _size(L.shape[-2])
    return size * (2 * padded(size, L.dtype) + 2 * padded(_PANEL, L.dtype) + 1) * L.element_size()
