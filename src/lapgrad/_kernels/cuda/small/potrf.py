"""potrf of batches of matrices up to order 128: one launch, in registers and in the memory of a block."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import (
    Geometry,
    Launch,
    address,
    fits,
    lanes_for,
    padded,
    readable,
    tile_stride,
    writable,
)
from lapgrad._kernels.torch import potrf as _fallback

LARGEST_ORDER = 128

#: Up to this order a matrix has 4, 8, 16 or 32 lanes of a warp, above it a block.
LARGEST_IN_WARP = 32

#: Threads of a block with several matrices: small, so that blocks fill the last processors evenly.
_THREADS = 128
_PANEL = 16


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    n = A.shape[-1]
    if n > LARGEST_ORDER or not A.numel() or A.dtype not in (torch.float32, torch.float64):
        return False
    return fits(_pull_back_geometry(1, n, A.dtype)[3], A)


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    """As ``_fallback.potrf``, for what ``serves`` takes."""
    target = writable(L)
    if target is None or (info is not None and not info.is_contiguous()):
        return _fallback.potrf(L, A, lower, info)
    cell = _items.first_failure_cell(A) if info is None else None
    _launch.launch(*factoring(target, readable(A), lower, info, cell))
    return _items.first_failure(cell)


def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    """As ``_fallback.potrf_vjp``, for what ``serves`` takes."""
    target = writable(gA)
    if target is None or (info is not None and not info.is_contiguous()):
        return _fallback.potrf_vjp(gA, L, gL, lower, info)
    _launch.launch(*pulling_back(target, readable(L), readable(gL), lower, info))
    return None


def factoring(L: Tensor, A: Tensor, lower: bool, info: Tensor | None, cell: Tensor | None) -> Launch:
    """The launch that factors; an upper factor is the lower one of the transposed memory."""
    items, n, _ = A.shape
    name, grid, threads, shared = _factor_geometry(items, n, A.dtype)
    sizes = (n, items) if n <= LARGEST_IN_WARP else (n,)
    arguments = (*_operand(L, lower), *_operand(A, lower), *sizes, address(info), address(cell))
    return "potrf_batch", name, A, grid, threads, shared, *arguments


def pulling_back(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> Launch:
    """The launch that pulls back."""
    items, n, _ = L.shape
    name, grid, threads, shared = _pull_back_geometry(items, n, L.dtype)
    sizes = (n, items) if n <= LARGEST_IN_WARP else (n,)
    operands = (*_operand(gA, True), *_operand(L, lower), *_operand(gL, lower))
    return "potrf_batch", name, L, grid, threads, shared, *operands, *sizes, address(info)


# What depends on the shape alone is worked out once: a launch takes the host no longer than this would.


@functools.lru_cache(maxsize=4096)
def _factor_geometry(items: int, n: int, dtype: torch.dtype) -> Geometry:
    if n <= LARGEST_IN_WARP:
        lanes = lanes_for(n)
        groups = _THREADS // lanes
        shared = groups * tile_stride(lanes, lanes, dtype) * dtype.itemsize
        return f"factor_small<{{T}}, {lanes}>", (-(-items // groups),), _THREADS, shared
    size = _completed(n)
    elements = size * padded(size, dtype) + _PANEL * padded(_PANEL, dtype) + _PANEL
    return "factor_medium<{T}>", (items,), 2 * size, elements * dtype.itemsize + 8


@functools.lru_cache(maxsize=4096)
def _pull_back_geometry(items: int, n: int, dtype: torch.dtype) -> Geometry:
    """Of a block this needs more memory than the factorisation."""
    if n <= LARGEST_IN_WARP:
        lanes = lanes_for(n)
        groups = _THREADS // lanes
        shared = groups * (2 * tile_stride(lanes, lanes, dtype) + lanes) * dtype.itemsize
        return f"pull_back_small<{{T}}, {lanes}>", (-(-items // groups),), _THREADS, shared
    size = _completed(n)
    elements = size * (padded(size, dtype) + 2 * padded(_PANEL, dtype)) + _PANEL
    return "pull_back_medium<{T}>", (items,), 2 * size, elements * dtype.itemsize


def _completed(n: int) -> int:
    """The order in whole panels."""
    return -(-n // _PANEL) * _PANEL


def _operand(A: Tensor, lower: bool) -> tuple[int, int, int, int]:
    item, row, column = A.stride()
    return (A.data_ptr(), item, row, column) if lower else (A.data_ptr(), item, column, row)
