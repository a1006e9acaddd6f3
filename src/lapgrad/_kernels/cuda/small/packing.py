"""extracttrian, maketrian and mirrored triangles on CUDA: one launch for all items.

See ``kernels/packing.cu``.
"""

from __future__ import annotations

import functools

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import Launch

_THREADS = 256
_WARP = 32
_TILE = 32

#: The largest number of entries of a row that one thread moves. More per thread save index computations;
#: fewer give more threads, which keep the device busy.
_ALONG_A_ROW = 8
#: Rows that a group of threads takes one after the other, where that leaves enough threads to fill a device.
_PASSES = 4


def plan_packing(v: Tensor, A: Tensor, offset: int, lower: bool) -> Launch:
    """Return the launch of v (items, 1, length) := the entries of a triangle of A (items, n, n)."""
    return _plan_move(A, v, offset, lower, unpacks=False)


def plan_unpacking(A: Tensor, v: Tensor, offset: int, lower: bool) -> Launch:
    """Return the launch of A (items, n, n) := v (items, 1, length) in one triangle, and zeros."""
    return _plan_move(A, v, offset, lower, unpacks=True)


def _plan_move(A: Tensor, v: Tensor, offset: int, lower: bool, unpacks: bool) -> Launch:
    items, n = A.shape[:2]
    skip = abs(offset)
    v_item, _, v_step = v.stride()
    item, row, column = A.stride()
    if offset > 0 or (offset == 0 and not lower):  # columns of an upper triangle are rows of A^T
        row, column = column, row
    operands = (A.data_ptr(), item, row, column, v.data_ptr(), v_item, v_step, n, skip)
    flag = "true" if unpacks else "false"
    if n > _TILE and column > row:
        tiles = -(-n // _TILE)
        shared = _TILE * (_TILE + 1) * A.element_size()
        name = f"move_tiles<{{T}}, {flag}>"
        return "packing", name, A, (items * tiles * tiles,), _THREADS, shared, *operands, tiles
    lanes, passes, grid = _divide_rows(items * (n if unpacks else n - skip), n)
    return "packing", f"move_rows<{{T}}, {flag}>", A, grid, _THREADS, 0, *operands, items, lanes, passes


def plan_mirror(A: Tensor) -> Launch:
    """Return the launch that mirrors the lower triangles of A (items, n, n), contiguous."""
    items, n, _ = A.shape
    lanes, passes, grid = _divide_rows(items * n, n)
    return "packing", "mirror_rows<{T}>", A, grid, _THREADS, 0, A.data_ptr(), n, items, lanes, passes


def plan_mirrored_copy(B: Tensor, A: Tensor, lower: bool) -> Launch:
    """Return the launch of B := the symmetric matrix with A's named triangle; B (items, n, n), contiguous."""
    items, n, _ = A.shape
    item, row, column = A.stride()
    if not lower:
        row, column = column, row
    operands = (B.data_ptr(), A.data_ptr(), item, row, column, n)
    if n <= _thresholds.MIRROR_BY_ROWS:
        lanes, passes, grid = _divide_rows(items * n, n)
        return (
            "packing", "copy_mirrored_rows<{T}>", A, grid, _THREADS, 0, *operands, items, lanes, passes,
        )  # fmt: skip
    down = -(-n // _TILE)
    grid, shared = (items * down * (down + 1) // 2,), _TILE * (_TILE + 1) * A.element_size()
    return "packing", "copy_mirrored_tiles<{T}>", A, grid, _THREADS, shared, *operands, down


def plan_gathered_diagonals(d: Tensor, A: Tensor) -> Launch:
    """Return the launch of d := the diagonals of A (items, n, n); d is contiguous."""
    items, n, _ = A.shape
    item, row, column = A.stride()
    operands = (d.data_ptr(), A.data_ptr(), item, row + column, n, items * n)
    return "packing", "gather_diagonals<{T}>", A, (-(-items * n // _THREADS),), _THREADS, 0, *operands


def plan_diagonals(A: Tensor, d: Tensor) -> Launch:
    """Return the launch of A := diag(d); A (items, n, n), contiguous, and d (items, n)."""
    items, n = d.shape
    lanes, passes, grid = _divide_rows(items * n, n)
    operands = (A.data_ptr(), d.data_ptr(), *d.stride(), n, items, lanes, passes)
    return "packing", "place_diagonals<{T}>", A, grid, _THREADS, 0, *operands


@functools.lru_cache(maxsize=4096)
def _divide_rows(rows: int, n: int) -> tuple[int, int, tuple[int]]:
    """Threads for a row, rows that they take one after the other, and the grid."""
    lanes = _choose_lanes(n)
    passes = _PASSES if rows * lanes >= _thresholds.PACKING_MANY_THREADS else 1
    return lanes, passes, (-(-rows // (_THREADS // lanes * passes)),)


def _choose_lanes(n: int) -> int:
    """Threads for a row, a power of two."""
    if n <= _WARP:
        return 1 << (n - 1).bit_length() if n else 1
    return min(max(_WARP, 1 << (n // _ALONG_A_ROW).bit_length() - 1), _THREADS)
