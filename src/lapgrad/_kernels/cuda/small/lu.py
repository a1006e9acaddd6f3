"""LU factorisation of batches of matrices up to order 128, with determinants, inverses and solves.

See ``kernels/lu_batch.cu`` and ``kernels/lu_solve_batch.cu``. Factors are contiguous and stored transposed;
pivots are LAPACK's, int32, from 1.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime.items import (
    Geometry,
    Launch,
    choose_lanes,
    compute_tile_stride,
    get_address,
    pad_columns,
)

#: Threads of a block with several matrices, and the most columns of one item in a block.
_THREADS = 128
_PANEL = 16

#: Bytes of shared memory for the factors in a block that solves: several blocks fit a multiprocessor.
_SOLVE_BYTES = 32 * 1024

#: Statuses that count as failures: those of ``is_reported`` in ``kernels/lu.cuh``.
NON_FINITE, ZERO_PIVOT, OVERFLOW = 1, 2, 4

_NOWHERE = (0, 0, 0, 0)


class Determinants(NamedTuple):
    """Where determinants of a batch go, each (items): itself, or its sign and logarithm; None: nowhere."""

    value: Tensor | None = None
    sign: Tensor | None = None
    logarithm: Tensor | None = None


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    n = A.shape[-1]
    if not (n <= _thresholds.LU_SMALL and A.numel() and A.dtype in (torch.float32, torch.float64)):
        return False
    return _items.has_block_memory(_choose_factor_geometry(1, n, A.dtype)[3], A)


def plan_factorisation(
    A: Tensor,
    *,
    LU: Tensor | None = None,
    pivots: Tensor | None = None,
    determinants: Determinants | None = None,
    scaled: bool = False,
    reported: int = NON_FINITE,
    info: Tensor | None = None,
    cell: Tensor | None,
) -> Launch:
    """Return the launch that factors A (items, n, n) and writes whatever is given.

    ``scaled``: entries near the ends of the range are scaled; pivots (items, n + 1) end with the exponent.
    """
    items, n, _ = A.shape
    name, grid, threads, shared = _choose_factor_geometry(items, n, A.dtype)
    step = 0 if pivots is None else pivots.stride(0)
    results = (
        get_address(LU),
        get_address(pivots),
        step,
        *map(get_address, determinants or Determinants()),
    )
    source = (A.data_ptr(), *A.stride())
    status = (get_address(info), get_address(cell))
    if n <= _thresholds.LU_IN_WARP:
        return (
            "lu_batch", name, A, grid, threads, shared, *results, *_NOWHERE, *source, n, items, int(scaled),
            0, 0, 0, reported, *status,
        )  # fmt: skip
    return "lu_batch", name, A, grid, threads, shared, *results, *source, n, int(scaled), reported, *status


def plan_small_inverse(
    X: Tensor,
    A: Tensor,
    *,
    transpose: bool = False,
    weight: Tensor | None = None,
    by_determinant: bool = False,
    reported: int,
    info: Tensor | None = None,
    cell: Tensor | None,
) -> Launch:
    """Return the launch that writes X := A⁻¹, or A⁻ᵀ, times a weight and the determinant; order up to 32."""
    items, n, _ = A.shape
    name, grid, threads, shared = _choose_factor_geometry(items, n, A.dtype)
    weights = (0, 0) if weight is None else (weight.data_ptr(), weight.stride(0))
    return (
        "lu_batch", name, A, grid, threads, shared, *[0] * 6, *_pack_operand(X, transpose),
        A.data_ptr(), *A.stride(), n, items, 0, *weights, int(by_determinant), reported,
        get_address(info), get_address(cell),
    )  # fmt: skip


def plan_inverse(
    X: Tensor,
    LU: Tensor,
    pivots: Tensor,
    *,
    transpose: bool = False,
    weight: Tensor | None = None,
    by_determinant: bool = False,
    reported: int,
    info: Tensor | None = None,
    cell: Tensor | None,
) -> Launch:
    """Return the launch that writes what ``plan_small_inverse`` does, from factors of order 33 to 128."""
    weights = (0, 0) if weight is None else (weight.data_ptr(), weight.stride(0))
    return (
        *_plan_medium(X, LU, pivots, None, transpose=False, turned=transpose),
        *weights, int(by_determinant), reported, get_address(info), get_address(cell),
    )  # fmt: skip


def plan_solution(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> Launch:
    """Return the launch that solves with the factors of ``plan_factorisation`` with ``scaled``."""
    items, n, columns = B.shape
    if n > _thresholds.LU_IN_WARP:
        return *_plan_medium(X, LU, pivots, B, transpose=transpose), 0, 0, 0, 0, 0, 0
    name, grid, threads, shared, groups, width, chunks = _choose_solve_geometry(items, n, columns, B.dtype)
    return (
        "lu_solve_batch", name, B, grid, threads, shared, X.data_ptr(), *X.stride(), LU.data_ptr(),
        pivots.data_ptr(), B.data_ptr(), *B.stride(), n, columns, items, groups, width, chunks,
        int(transpose),
    )  # fmt: skip


def _plan_medium(
    X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor | None, transpose: bool, turned: bool = False
) -> Launch:
    items, n, columns = X.shape
    size = -(-n // _PANEL) * _PANEL
    width = min(columns, _THREADS)
    chunks = -(-columns // width)
    threads = max(-(-width // 32) * 32, min(size, _THREADS))
    shared = (size * pad_columns(size, X.dtype) + 2) * X.element_size() + 4 * (size + 1)
    right = _NOWHERE if B is None else (B.data_ptr(), *B.stride())
    return (
        "lu_solve_batch", "solve_medium<{T}>", X, (items * chunks,), threads, shared,
        *_pack_operand(X, turned), LU.data_ptr(), pivots.data_ptr(), pivots.stride(0), *right,
        n, columns, width, chunks, int(transpose),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _choose_factor_geometry(items: int, n: int, dtype: torch.dtype) -> Geometry:
    if n <= _thresholds.LU_IN_WARP:
        lanes = choose_lanes(n)
        groups = _THREADS // lanes
        shared = groups * compute_tile_stride(lanes, lanes, dtype) * dtype.itemsize
        return f"factor_small<{{T}}, {lanes}>", (-(-items // groups),), _THREADS, shared
    size = -(-n // _PANEL) * _PANEL
    elements = size * (pad_columns(size, dtype) + pad_columns(_PANEL, dtype)) + 2 * _PANEL + 8
    return "factor_medium<{T}>", (items,), 2 * size, elements * dtype.itemsize + 4 * (8 + size + 4)


@functools.lru_cache(maxsize=4096)
def _choose_solve_geometry(
    items: int, n: int, columns: int, dtype: torch.dtype
) -> tuple[str, tuple[int], int, int, int, int, int]:
    """Return kernel, grid, threads and bytes of a launch.

    Three numbers follow: the items of a block, the columns of an item that it solves for, and the chunks of
    columns of an item.
    """
    lanes = choose_lanes(n)
    width = min(columns, _THREADS)
    bytes_of_item = compute_tile_stride(lanes, lanes, dtype) * dtype.itemsize + 4 * lanes
    groups = max(1, min(_THREADS // width, _SOLVE_BYTES // bytes_of_item, items))
    chunks = -(-columns // width)
    threads = -(-groups * width // 32) * 32
    name = f"solve_small<{{T}}, {lanes}>"
    return name, (-(-items // groups) * chunks,), threads, groups * bytes_of_item, groups, width, chunks


def _pack_operand(A: Tensor, transpose: bool) -> tuple[int, int, int, int]:
    item, row, column = A.stride()
    return (A.data_ptr(), item, column, row) if transpose else (A.data_ptr(), item, row, column)
