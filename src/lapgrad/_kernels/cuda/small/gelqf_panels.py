"""gelqf of batches of matrices with up to 1024 columns: panels of rows, and products for the rows below.

See ``kernels/gelqf_panel.cu``. The workspace of a matrix is a copy of it, and a triangle for each panel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_WARPS = 8
_THREADS = 32 * _WARPS


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
        L.data_ptr(), *L.stride(), work.data_ptr(), factors.data_ptr(), signs.data_ptr(), m, n, min(m, n), start,
        factors.shape[1],
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
    """L, Q := the factors of ``work`` (items, m, n), contiguous, which is overwritten."""
    items, m, n = work.shape
    rank = min(m, n)
    rows_of_warp = choose_rows_of_warp(n, work.dtype)
    panel = _WARPS * rows_of_warp
    panels = -(-rank // panel)
    factors = work.new_empty(items, panels, panel, panel)
    signs = work.new_empty(items, rank)
    for number in range(panels):
        start = number * panel
        stop = min(start + panel, rank)
        _launch.launch(*plan_panel(L, work, factors, signs, start, rows_of_warp))
        if stop == m:
            break
        V, T = work[:, start:stop, start:], factors[:, number, : stop - start, : stop - start]
        below = work[:, stop:, start:]
        torch.baddbmm(below, below @ V.mT, T @ V, alpha=-1.0, out=below)
    _launch.launch(*plan_finish(L, Q, work, signs, panel, cell))
    if Q is None:
        return
    for number in reversed(range(panels)):
        start = number * panel
        stop = min(start + panel, rank)
        V, T = work[:, start:stop, start:], factors[:, number, : stop - start, : stop - start]
        rest = Q[:, start:, start:]
        torch.baddbmm(rest, rest @ V.mT, T.mT @ V, alpha=-1.0, out=rest)
