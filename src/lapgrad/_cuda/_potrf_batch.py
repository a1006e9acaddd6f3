"""potrf of batches of matrices up to order 128: one launch, in registers and in the memory of a block."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _items, _launch
from lapgrad._cuda._items import Launch, address, fits, lanes_for, padded, readable, tile_stride, writable

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
    return fits(_small_memory(n, A) if n <= LARGEST_IN_WARP else _medium_memory(n, A), A)


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
    items, n = A.shape[:2]
    operands = (*_operand(L, lower), *_operand(A, lower), n)
    reports = (address(info), address(cell))
    if n <= LARGEST_IN_WARP:
        lanes = lanes_for(n)
        groups = _THREADS // lanes
        shared = groups * tile_stride(lanes, lanes, A) * A.element_size()
        name = f"factor_small<{{T}}, {lanes}>"
        return "potrf_batch", name, A, (-(-items // groups),), _THREADS, shared, *operands, items, *reports
    size = _completed(n)
    elements = size * padded(size, A) + _PANEL * padded(_PANEL, A) + _PANEL
    shared = elements * A.element_size() + 8
    return "potrf_batch", "factor_medium<{T}>", A, (items,), 2 * size, shared, *operands, *reports


def pulling_back(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> Launch:
    """The launch that pulls back."""
    items, n = L.shape[:2]
    operands = (*_operand(gA, True), *_operand(L, lower), *_operand(gL, lower), n)
    if n <= LARGEST_IN_WARP:
        lanes = lanes_for(n)
        groups = _THREADS // lanes
        name, shared = f"pull_back_small<{{T}}, {lanes}>", _small_memory(n, L)
        grid = (-(-items // groups),)
        return "potrf_batch", name, L, grid, _THREADS, shared, *operands, items, address(info)
    name, threads, shared = "pull_back_medium<{T}>", 2 * _completed(n), _medium_memory(n, L)
    return "potrf_batch", name, L, (items,), threads, shared, *operands, address(info)


def _small_memory(n: int, like: Tensor) -> int:
    """Bytes that a block of the gradient needs: more than the factorisation."""
    lanes = lanes_for(n)
    return _THREADS // lanes * (2 * tile_stride(lanes, lanes, like) + lanes) * like.element_size()


def _medium_memory(n: int, like: Tensor) -> int:
    size = _completed(n)
    return (size * (padded(size, like) + 2 * padded(_PANEL, like)) + _PANEL) * like.element_size()


def _completed(n: int) -> int:
    """The order in whole panels."""
    return -(-n // _PANEL) * _PANEL


def _operand(A: Tensor, lower: bool) -> tuple[int, int, int, int]:
    item, row, column = A.stride()
    return (A.data_ptr(), item, row, column) if lower else (A.data_ptr(), item, column, row)
