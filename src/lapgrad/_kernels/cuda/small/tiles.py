"""What the gradients of syevd and gesvd share for matrices above the small ones: products and geometries.

See ``kernels/spectral_tiles.cuh``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items

#: ``kTile``, ``kTileThreads`` and ``kWarpRows`` in ``kernels/spectral_tiles.cuh``.
_TILE, THREADS, _WARP_ROWS = 32, 256, 8

_WARPS = THREADS // 32


def count_pairs(items: int, n: int) -> int:
    """Blocks of a launch that gives each pair of mirrored tiles of (items, n, n) a block."""
    tiles = -(-n // _TILE)
    return items * (tiles * (tiles + 1) // 2)


def count_row_blocks(rows: int) -> int:
    """Blocks of a launch that gives each warp several rows to measure."""
    return -(-rows // (_WARPS * _WARP_ROWS))


def count_warp_blocks(rows: int) -> int:
    """Blocks of a launch that gives each warp one row."""
    return -(-rows // _WARPS)


def count_bytes(tiles: int, dtype: torch.dtype) -> int:
    """Shared memory of a block with that many tiles, and a number for each of its warps."""
    return (tiles * _TILE * (_TILE + 1) + _WARPS) * dtype.itemsize


def pack_operand(A: Tensor | None) -> tuple[int, ...]:
    """Address and strides of A, which has one batch dimension; zeros for None."""
    return (0, 0, 0, 0) if A is None else (A.data_ptr(), *A.stride())


def multiply(A: Tensor, B: Tensor, out: Tensor) -> None:
    """out := A B for batches with one leading dimension; of one item as a plain product, which is faster."""
    if len(A) == 1:
        torch.mm(A[0], B[0], out=out[0])
    else:
        torch.bmm(A, B, out=out)


class Check:
    """The status of the items of one call, which the host reads while the device goes on with products.

    Attributes:
        cell: What kernels report to; None: nobody reads it, while a graph is captured or without waiting.
    """

    def __init__(self, like: Tensor) -> None:
        self._status = _items.DeferredStatus.acquire(like)
        self._receive: Callable[[], tuple[int, int] | None] = _items.report_no_failure
        self.cell = None if self._status is None else self._status.cell

    def send(self) -> None:
        """Called after the launch of the last kernel that reports."""
        if self._status is not None:
            self._receive = self._status.send()

    def receive(self) -> tuple[int, int] | None:
        """(item, code) of the first failure, else None. The host waits for what was launched before send."""
        return self._receive()
