"""gelqf of batches of matrices with up to 128 rows and columns: Householder reflections in registers."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _items, _launch
from lapgrad._cuda._items import Launch, address, readable, writable

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


def factoring(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool, cell: Tensor | None) -> Launch:
    """The launch that factors."""
    items, m, n = A.shape
    orthogonal = (0, 0, 0, 0) if Q is None else (Q.data_ptr(), *Q.stride())
    operands = (L.data_ptr(), *L.stride(), *orthogonal, A.data_ptr(), *A.stride(), m, n)
    if max(m, n) <= LARGEST_IN_GROUP:
        rows, columns = _items.lanes_for(m), _items.lanes_for(n)
        groups = _THREADS // rows
        shared = groups * _items.tile_stride(rows, columns, A) * A.element_size()
        name = f"factor_small<{{T}}, {rows}, {columns}>"
        grid = (-(-items // groups),)
        return "gelqf_batch", name, A, grid, _THREADS, shared, *operands, items, int(positive), address(cell)
    lanes = 4 if n <= 32 else 8 if n <= 64 else 16
    threads = -(-(-(-m // _ROWS_OF_LANE) * lanes) // 32) * 32
    shared = (4 * lanes * _COLUMNS_OF_LANE + 2) * A.element_size() + 8
    name = f"factor_medium<{{T}}, {lanes}, {_COLUMNS_OF_LANE}, {_ROWS_OF_LANE}>"
    return "gelqf_batch", name, A, (items,), threads, shared, *operands, int(positive), address(cell)
