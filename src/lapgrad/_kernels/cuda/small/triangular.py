"""trsm and trmm of batches of triangular matrices up to order 128: a thread has a column.

All cases are one: L lower, on the left. See ``kernels/triangular_batch.cu``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import (
    Launch,
    choose_lanes,
    compute_tile_stride,
    get_address,
    has_block_memory,
    pad_columns,
)

_PANEL = 16

#: Threads of a block, and the most columns of one item in a block.
_THREADS = 128

#: Bytes for the triangles of a block: three blocks fit a small multiprocessor, seven a large one.
_TRIANGLES = 32 * 1024


def serves(L: Tensor, A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    n = L.shape[-1]
    if not A.numel() or A.dtype not in (torch.float32, torch.float64):
        return False
    if n > _thresholds.TRIANGULAR_ALONE and (
        n > _thresholds.TRIANGULAR_SMALL or L.shape[:-2].numel() <= _thresholds.TRIANGULAR_FEW
    ):
        return False
    return has_memory(L)


def has_memory(L: Tensor) -> bool:
    """Whether a block has the memory for a triangle of the order and type of L."""
    size = _round_to_panels(L.shape[-1])
    return has_block_memory(size * pad_columns(size, L.dtype) * L.element_size(), L)


def plan_application(
    X: Tensor,
    L: Tensor,
    A: Tensor,
    lower: bool,
    transpose: bool,
    rightside: bool,
    solve: bool,
    cell: Tensor | None,
    search: bool = False,
) -> Launch:
    """Return the launch of a triangular solve (``solve``) or a triangular product for a batch.

    X := t(L)^-1 A with ``solve``, else X := t(L) A, where t(L) is L or its transpose; ``rightside``: the
    triangle stands on the right of A. It writes nothing if the status cell ``cell`` holds a failure; with
    ``search`` it reports zeros on the diagonal there, and X, which is not A, is then undefined.
    """
    items, n = L.shape[:2]
    columns = A.shape[-2 if rightside else -1]
    itemsize = A.element_size()
    operands = [[operand.data_ptr(), *operand.stride()] for operand in (X, L, A)]
    x, triangle, a = operands
    if rightside:
        for operand in (x, a):
            operand[2:] = operand[:1:-1]
    if transpose != rightside:
        triangle[2:] = triangle[:1:-1]
        lower = not lower
    if not lower:
        triangle[0] += (n - 1) * (triangle[2] + triangle[3]) * itemsize
        triangle[2:] = -triangle[2], -triangle[3]
        for operand in (x, a):
            operand[0] += (n - 1) * operand[2] * itemsize
            operand[2] = -operand[2]
    name, grid, threads, shared, *division = _choose_geometry(items, n, columns, A.dtype, solve)
    operands_and_sizes = (*x, *triangle, *a, n, columns, items, *division)
    status = get_address(cell), 0 if not search else 1 if lower else -1
    return "triangular_batch", name, A, grid, threads, shared, *operands_and_sizes, *status


@functools.lru_cache(maxsize=4096)
def _choose_geometry(
    items: int, n: int, columns: int, dtype: torch.dtype, solve: bool
) -> tuple[str, tuple[int], int, int, int, int, int]:
    """Kernel, grid, threads, bytes; items of a block, columns of an item in it, blocks for an item."""
    width = min(1 << (columns - 1).bit_length(), _THREADS)
    flag = "true" if solve else "false"
    if n <= _thresholds.TRIANGULAR_IN_REGISTERS:
        registers = choose_lanes(n)
        name = f"apply_small<{{T}}, {registers}, {flag}>"
        tile = compute_tile_stride(registers, registers, dtype) * dtype.itemsize
        groups = max(1, min(_THREADS // width, _TRIANGLES // tile))
    else:
        size = _round_to_panels(n)
        name = f"apply_medium<{{T}}, {flag}>"
        tile = size * pad_columns(size, dtype) * dtype.itemsize
        groups = 1
    chunks = -(-columns // width)
    return name, (-(-items // groups) * chunks,), _THREADS, groups * tile, groups, width, chunks


def _round_to_panels(n: int) -> int:
    """n rounded up to a multiple of the panel."""
    return -(-n // _PANEL) * _PANEL


def plan_zero_pivot_search(L: Tensor, cell: Tensor) -> Launch:
    """Return the launch that reports zeros on the diagonal."""
    items, n = L.shape[:2]
    item, row, column = L.stride()
    grid = (-(-items * n // _THREADS),)
    arguments = (L.data_ptr(), item, row + column, n, items, cell.data_ptr())
    return "triangular_batch", "find_zero_pivots<{T}>", L, grid, _THREADS, 0, *arguments
