"""gelqf of batches of matrices with up to 1024 columns: panels of rows, and products for the rows below.

See ``kernels/gelqf_panel.cu``. The workspace of a matrix is a copy of it, and a triangle for each panel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_WARPS = 8
_THREADS = 32 * _WARPS


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    return (
        A.numel() > 0
        and A.shape[-1] <= _thresholds.GELQF_PANEL_COLUMNS
        and A.dtype in (torch.float32, torch.float64)
    )


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """``_fallback.gelqf`` with a positive diagonal, for operands that ``serves`` accepts."""
    cell = _items.get_status_cell(A)
    lower = _items.view_batch(L)
    factor = L.new_empty(L.shape) if lower is None else L
    in_place = Q is not None and _device.is_storable(Q)
    rows = None if Q is None else Q if in_place else Q.new_empty(Q.shape)
    factorise(
        _items.flatten_batch(factor),
        None if rows is None else _items.flatten_batch(rows),
        _items.flatten_batch(A).clone(memory_format=torch.contiguous_format),
        cell,
    )
    if factor is not L:
        L.copy_(factor)
    if Q is not None and rows is not None and not in_place:
        Q.copy_(rows)
    return _items.read_first_failure(cell)


def choose_rows_of_warp(n: int, dtype: torch.dtype) -> int:
    """Rows of a panel that one warp has: as many as fit into registers, at most 4."""
    return 4 if n <= 512 or dtype == torch.float32 else 2


def plan_panel(
    L: Tensor, work: Tensor, factors: Tensor, signs: Tensor, start: int, rows_of_warp: int
) -> Launch:
    """The launch that factors the panel whose first row is ``start``."""
    items, m, n = work.shape
    columns = n - start
    registers = 4 if columns <= 128 else 8 if columns <= 256 else 16 if columns <= 512 else 32
    rows = _WARPS * rows_of_warp
    shared = (2 * 32 * registers + rows * (rows + 1) + 2 * rows) * work.element_size()
    return (
        "gelqf_panel", f"factor_panel<{{T}}, {registers}, {rows_of_warp}>", work, (items,), _THREADS, shared,
        L.data_ptr(), *L.stride(), work.data_ptr(), factors.data_ptr(), signs.data_ptr(),
        m, n, min(m, n), start, factors.shape[1],
    )  # fmt: skip


def plan_finish(
    L: Tensor, Q: Tensor | None, work: Tensor, signs: Tensor, panel: int, cell: Tensor | None
) -> Launch:
    """The launch that completes L and prepares Q."""
    items, m, n = work.shape
    rest = (0, 0, 0, 0) if Q is None else (Q.data_ptr(), *Q.stride())
    return (
        "gelqf_panel", "finish_lower<{T}>", work, (-(-m // _WARPS), items), _THREADS, 0, L.data_ptr(),
        *L.stride(), *rest, work.data_ptr(), signs.data_ptr(), m, n, min(m, n), panel, get_address(cell),
    )  # fmt: skip


def factorise(L: Tensor, Q: Tensor | None, work: Tensor, cell: Tensor | None) -> None:
    """L, Q := the factors of ``work`` (items, m, n), contiguous, which is overwritten.

    With V and T of a panel, the rows X below it become X (I - Vᵀ T V), and Q, from the last panel back,
    becomes Q (I - Vᵀ Tᵀ V).
    """
    items, m, n = work.shape
    rank = min(m, n)
    rows_of_warp = choose_rows_of_warp(n, work.dtype)
    panel = _WARPS * rows_of_warp
    panels = -(-rank // panel)
    factors, signs = work.new_empty(items, panels, panel, panel), work.new_empty(items, rank)
    right, product = work.new_empty(items, panel, n), work.new_empty(items, m, panel)

    rows_of_v, rows_of_tv = _device.BlockedBatch(work), _device.BlockedBatch(right)
    triangles, products = _device.BlockedBatch(factors.flatten(1, 2)), _device.BlockedBatch(product)

    def reflect(X: _device.Blocks, start: int, stop: int, transpose: bool) -> None:
        """X := X (I - Vᵀ T V), or with Tᵀ, for X without the columns before ``start``, where V is zero."""
        V, T = rows_of_v.block(start, stop, start, n), triangles.block(start, stop, 0, stop - start)
        TV, XV = rows_of_tv.block(0, stop - start, start, n), products.block(0, X[3], 0, stop - start)
        _device.multiply_blocks(work, TV, _device.transpose_blocks(T) if transpose else T, V)
        _device.multiply_blocks(work, XV, X, _device.transpose_blocks(V))
        _device.multiply_blocks(work, X, XV, TV, alpha=-1.0, beta=1.0)

    bounds = [(start, min(start + panel, rank)) for start in range(0, rank, panel)]
    for start, stop in bounds:
        _launch.launch(*plan_panel(L, work, factors, signs, start, rows_of_warp))
        if stop < m:
            reflect(rows_of_v.block(stop, m, start, n), start, stop, False)
    _launch.launch(*plan_finish(L, Q, work, signs, panel, cell))
    if Q is not None:
        rows_of_q = _device.BlockedBatch(Q)
        for start, stop in reversed(bounds):
            reflect(rows_of_q.block(start, rank, start, n), start, stop, True)
