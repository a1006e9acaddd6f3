"""potrf of batches of matrices up to order 128: one launch, in registers and in the memory of a block."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import (
    Geometry,
    Launch,
    choose_lanes,
    compute_tile_stride,
    flatten_batch,
    get_address,
    has_block_memory,
    pad_columns,
    view_batch,
)
from lapgrad._kernels.torch import potrf as _fallback

#: Threads of a block with several matrices: small, so that blocks fill the last processors evenly.
_THREADS = 128
_PANEL = 16


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    n = A.shape[-1]
    if n > _thresholds.POTRF_SMALL or not A.numel() or A.dtype not in (torch.float32, torch.float64):
        return False
    return has_block_memory(_choose_vjp_geometry(1, n, A.dtype)[3], A)


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    target = view_batch(L)
    if target is None or (info is not None and not info.is_contiguous()):
        return _fallback.potrf(L, A, lower, info)
    cell = _items.get_status_cell(A) if info is None else None
    _launch.launch(*plan_factorisation(target, flatten_batch(A), lower, info, cell))
    return _items.read_first_failure(cell)


def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    target = view_batch(gA)
    if target is None or (info is not None and not info.is_contiguous()):
        return _fallback.potrf_vjp(gA, L, gL, lower, info)
    _launch.launch(*plan_vjp(target, flatten_batch(L), flatten_batch(gL), lower, info))
    return None


def plan_factorisation(L: Tensor, A: Tensor, lower: bool, info: Tensor | None, cell: Tensor | None) -> Launch:
    """Return the launch that factors; an upper factor is the lower one of the transposed memory."""
    items, n, _ = A.shape
    name, grid, threads, shared = _choose_factor_geometry(items, n, A.dtype)
    sizes = (n, items) if n <= _thresholds.POTRF_IN_WARP else (n,)
    arguments = (
        *_pack_operand(L, lower),
        *_pack_operand(A, lower),
        *sizes,
        get_address(info),
        get_address(cell),
    )
    return "potrf_batch", name, A, grid, threads, shared, *arguments


def plan_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> Launch:
    """Return the launch that computes the gradient."""
    items, n, _ = L.shape
    name, grid, threads, shared = _choose_vjp_geometry(items, n, L.dtype)
    sizes = (n, items) if n <= _thresholds.POTRF_IN_WARP else (n,)
    operands = (*_pack_operand(gA, True), *_pack_operand(L, lower), *_pack_operand(gL, lower))
    return "potrf_batch", name, L, grid, threads, shared, *operands, *sizes, get_address(info)


# The part that depends on the shape alone is computed once per shape: it takes as long as a launch.


@functools.lru_cache(maxsize=4096)
def _choose_factor_geometry(items: int, n: int, dtype: torch.dtype) -> Geometry:
    if n <= _thresholds.POTRF_IN_WARP:
        lanes = choose_lanes(n)
        groups = _THREADS // lanes
        shared = groups * compute_tile_stride(lanes, lanes, dtype) * dtype.itemsize
        return f"factor_small<{{T}}, {lanes}>", (-(-items // groups),), _THREADS, shared
    size = _round_to_panels(n)
    elements = size * pad_columns(size, dtype) + _PANEL * pad_columns(_PANEL, dtype) + _PANEL
    return "factor_medium<{T}>", (items,), 2 * size, elements * dtype.itemsize + 8


@functools.lru_cache(maxsize=4096)
def _choose_vjp_geometry(items: int, n: int, dtype: torch.dtype) -> Geometry:
    """Kernel, grid, threads and bytes of the gradient, which needs more memory than the factorisation."""
    if n <= _thresholds.POTRF_IN_WARP:
        lanes = choose_lanes(n)
        groups = _THREADS // lanes
        shared = groups * (2 * compute_tile_stride(lanes, lanes, dtype) + lanes) * dtype.itemsize
        return f"pull_back_small<{{T}}, {lanes}>", (-(-items // groups),), _THREADS, shared
    size = _round_to_panels(n)
    elements = size * (pad_columns(size, dtype) + 2 * pad_columns(_PANEL, dtype)) + _PANEL
    return "pull_back_medium<{T}>", (items,), 2 * size, elements * dtype.itemsize


def _round_to_panels(n: int) -> int:
    """n rounded up to a multiple of the panel."""
    return -(-n // _PANEL) * _PANEL


def _pack_operand(A: Tensor, lower: bool) -> tuple[int, int, int, int]:
    item, row, column = A.stride()
    return (A.data_ptr(), item, row, column) if lower else (A.data_ptr(), item, column, row)
