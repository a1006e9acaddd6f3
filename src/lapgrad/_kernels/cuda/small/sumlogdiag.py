"""sumlogdiag and its gradient: one launch each. See ``kernels/sumlogdiag.cu``."""

from __future__ import annotations

import functools

from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import Launch

_THREADS = 256
_WARP = 32

#: Diagonals up to this length have a warp at most, longer ones a block.
_LONG = 128
#: Rows that a group of threads writes one after the other, where that leaves enough threads.
_PASSES = 4


def plan_sum(s: Tensor, A: Tensor) -> Launch:
    """Return the launch of s := the sums of log |a_ii|; s (items), contiguous, and A (items, n, n)."""
    items, n, _ = A.shape
    item, row, column = A.stride()
    operands = (s.data_ptr(), A.data_ptr(), item, row + column, n)
    if n > _LONG:
        shared = _THREADS // _WARP * A.element_size()
        return "sumlogdiag", "sum_many_logs<{T}>", A, (items,), _THREADS, shared, *operands
    lanes = _choose_lanes(n, _WARP)
    return (
        "sumlogdiag",
        "sum_logs<{T}>",
        A,
        (-(-items * lanes // _THREADS),),
        _THREADS,
        0,
        *operands,
        items,
        lanes,
    )


def plan_vjp(gA: Tensor, A: Tensor, gs: Tensor) -> Launch:
    """The launch of gA := diag(gs / a_ii); gA (items, n, n), contiguous, A likewise, and gs (items)."""
    items, n, _ = A.shape
    item, row, column = A.stride()
    lanes, passes, blocks = _choose_rows(items, n)
    return (
        "sumlogdiag", "pull_back_logs<{T}>", A, (blocks,), _THREADS, 0, gA.data_ptr(), gs.data_ptr(),
        gs.stride(0), A.data_ptr(), item, row + column, n, items, lanes, passes,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _choose_rows(items: int, n: int) -> tuple[int, int, int]:
    """Threads for a row, rows that they write one after the other, and blocks."""
    lanes = _choose_lanes(n, _THREADS)
    passes = _PASSES if items * n * lanes >= _thresholds.PACKING_MANY_THREADS else 1
    return lanes, passes, -(-items * n // (_THREADS // lanes * passes))


def _choose_lanes(n: int, most: int) -> int:
    """Return the least power of two that is at least n, limited to ``most``."""
    return min(most, 1 << (n - 1).bit_length())
