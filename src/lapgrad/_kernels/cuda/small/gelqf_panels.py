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
        and A.shape[:-2].numel() <= _thresholds.MOST_ITEMS
        and A.shape[-1] <= _thresholds.GELQF_PANEL_COLUMNS
        and A.dtype in (torch.float32, torch.float64)
    )


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch`` with a positive diagonal, for operands that ``serves`` accepts."""
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


def list_kernels(n: int, rows_of_warp: int, dtype: torch.dtype) -> list[tuple[str, int, int]]:
    """(name, columns, bytes) of the kernels that factor panels of matrices with n columns."""
    rows, found = _WARPS * rows_of_warp, []
    for registers in (4, 8, 16, 32):
        bytes_of_block = (2 * 32 * registers + rows * (rows + 1) + 2 * rows) * dtype.itemsize
        found.append((f"factor_panel<{{T}}, {registers}, {rows_of_warp}>", 32 * registers, bytes_of_block))
        if n <= 32 * registers:
            break
    return found


def plan_finish(
    L: Tensor, Q: Tensor | None, work: Tensor, signs: Tensor, panel: int, cell: Tensor | None
) -> Launch:
    """Return the launch that completes L and prepares Q."""
    items, m, n = work.shape
    rest = (0, 0, 0, 0) if Q is None else (Q.data_ptr(), *Q.stride())
    return (
        "gelqf_panel", "finish_lower<{T}>", work, (-(-m // _WARPS), items), _THREADS, 0, L.data_ptr(),
        *L.stride(), *rest, work.data_ptr(), signs.data_ptr(), m, n, min(m, n), panel, get_address(cell),
    )  # fmt: skip


def factorise(L: Tensor, Q: Tensor | None, rows: Tensor, cell: Tensor | None) -> None:
    """Write the factors of ``rows`` (items, m, n) to L and Q. ``rows`` is contiguous, and is overwritten."""
    n, rows_of_warp = rows.shape[-1], choose_rows_of_warp(rows.shape[-1], rows.dtype)
    kernels = [
        (_launch.load_kernel("gelqf_panel", name, rows), columns, bytes_of_block)
        for name, columns, bytes_of_block in list_kernels(n, rows_of_warp, rows.dtype)
    ]
    panels = _device.PanelFactorisation(rows, _WARPS * rows_of_warp)
    panels.factor(L, kernels, _THREADS)
    _launch.launch(*plan_finish(L, Q, rows, panels.signs, _WARPS * rows_of_warp, cell))
    if Q is not None:
        panels.form(Q)
