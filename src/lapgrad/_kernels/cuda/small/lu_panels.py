"""LU factorisation of batches of matrices of order 129 to 1024: see ``kernels/lu_panel.cu``."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, pad_columns

_THREADS = 128


def factorise(work: Tensor, pivots: Tensor) -> None:
    """Replace ``work`` (items, n, n), contiguous, which holds Aᵀ, by the factors of A, transposed.

    The first n columns of ``pivots`` (items, n or more), int32, receive LAPACK's pivots.
    """
    n, blocks = work.shape[-1], _device.BlockedBatch(work)
    width = 32 if n <= 512 else 16
    for start in range(0, n, width):
        stop = min(start + width, n)
        for plan in plan_panel(work, pivots, start, width):
            _launch.launch(*plan)
        if stop < n:
            rest, left, top = (
                blocks.block(*bounds)
                for bounds in ((stop, n, stop, n), (stop, n, start, stop), (start, stop, stop, n))
            )
            _device.multiply_blocks(work, rest, left, top, alpha=-1.0, beta=1.0)


def plan_panel(work: Tensor, pivots: Tensor, start: int, width: int) -> tuple[Launch, Launch]:
    """Return two launches: one factors a panel, the other swaps the same rows in the other columns."""
    items, n, _ = work.shape
    size = work.element_size()
    operands = (work.data_ptr(), pivots.data_ptr(), pivots.stride(0), n, start)
    threads = -(-(n - start) // 32) * 32
    shared = 2 * width * size + 4 * (32 + 2)
    tile = width * pad_columns(width, work.dtype) * size + 4 * width
    return (
        ("lu_panel", f"factor_panel<{{T}}, {width}>", work, (items,), threads, shared, *operands),
        (
            "lu_panel",
            f"exchange_rows<{{T}}, {width}>",
            work,
            (-(-n // _THREADS), items),
            _THREADS,
            tile,
            *operands,
        ),
    )
