"""gelqf of batches of wide matrices with up to 128 rows: Householder reflections, 128 columns at a time.

See ``kernels/gelqf_wide.cu``. The workspace of a matrix is one number per row for every 128 columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address, view_batch
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch

#: Lanes per row, columns per lane and rows per lane: those of ``small/gelqf.py`` for 128 columns.
_LANES, _COLUMNS_OF_LANE, _ROWS_OF_LANE = 16, 8, 4
CHUNK = _LANES * _COLUMNS_OF_LANE
_PANEL = 16


def serves(A: Tensor) -> bool:
    """Whether these kernels take a batch of this shape and type."""
    m, n = A.shape[-2:]
    wide = 0 < m <= _thresholds.GELQF_SMALL < n and A.shape[:-2].numel() >= _thresholds.GELQF_WIDE_FEWEST
    return (
        wide and A.dtype in (torch.float32, torch.float64) and _items.has_block_memory(count_bytes(m, A), A)
    )


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch`` with a positive diagonal, for operands that ``serves`` accepts."""
    cell = _items.get_status_cell(A)
    lower = view_batch(L)
    factor = torch.empty_like(L, memory_format=torch.contiguous_format) if lower is None else L
    in_place = Q is not None and Q.is_contiguous()
    rows = Q if Q is not None and in_place else torch.empty_like(A, memory_format=torch.contiguous_format)
    rows.copy_(A)
    for plan in plan_factorisation(flatten_batch(factor), flatten_batch(rows), cell):
        _launch.launch(*plan)
    if factor is not L:
        L.copy_(factor)
    if Q is not None and not in_place:
        Q.copy_(rows)
    return _items.read_first_failure(cell)


def plan_factorisation(L: Tensor, rows: Tensor, cell: Tensor | None, with_q: bool = True) -> Iterator[Launch]:
    """Return the launches that factor ``rows``, contiguous, which then is Q; each to run before the next.

    Without Q the diagonal of L has any signs, and L may lie in the first columns of ``rows``.
    """
    items, m, n = rows.shape
    first = rows[..., :CHUNK]
    yield _gelqf_batch.plan_factorisation(L, first if with_q else None, first, True, None)
    taus = torch.empty((items, (n - 1) // CHUNK, m), dtype=rows.dtype, device=rows.device)
    kind = f"<{{T}}, {_LANES}, {_COLUMNS_OF_LANE}, {_ROWS_OF_LANE}>"
    threads = -(-(-(-m // _ROWS_OF_LANE) * _LANES) // 32) * 32
    geometry = (rows, (items,), threads, count_bytes(m, rows))
    operands = (L.data_ptr(), *L.stride(), rows.data_ptr(), taus.data_ptr(), m, n)
    yield "gelqf_wide", f"factor_wide{kind}", *geometry, *operands
    if with_q:
        yield "gelqf_wide", f"form_wide{kind}", *geometry, *operands, 1, get_address(cell)


def count_bytes(m: int, like: Tensor) -> int:
    """Bytes for a triangle and a panel; the two rows of the first kernel need less than the panel."""
    return (m * (m | 1) + _PANEL * CHUNK) * like.element_size()
