"""cuSOLVER's Cholesky factorisation, on the triangle where it is fast."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cuda import _solver
from lapgrad._cuda._block import Block


def factorise_upper(like: Tensor, A: Block, code: int) -> None:
    """Of each item the upper triangle, the lower one to cuSOLVER, becomes R with A = Rᵀ R.

    At ``code`` lie LAPACK's codes, an int32 per item.
    """
    device, kind, n, row = like.get_device(), _solver.DATA_TYPES[like.dtype], A.rows, A.row
    handle, choices = _solver.handle(device), _solver.parameters(device)
    size, host_size = _solver.routine("xpotrf_buffer_size")(
        handle, choices, _solver.LOWER, n, kind, A.address, row, kind
    )
    work, host_work = _solver.work_space(size, host_size, like)
    for item in range(A.items):
        _solver.routine("xpotrf")(
            handle, choices, _solver.LOWER, n, kind, A.item(item).address, row, kind,
            work.data_ptr(), size, host_work.data_ptr(), host_size, code + 4 * item,
        )  # fmt: skip
