"""cuSOLVER's Cholesky factorisation, on the triangle where it is fast."""

from __future__ import annotations

from torch import Tensor

from lapgrad._cuda import _solver


def factorise_upper(A: Tensor, code: Tensor) -> None:
    """Of each item the upper triangle, the lower one to cuSOLVER, becomes R with A = Rᵀ R; code[item] is LAPACK's."""
    items, n = A.shape[:2]
    device, kind, row = A.get_device(), _solver.DATA_TYPES[A.dtype], A.stride(1)
    handle, choices = _solver.handle(device), _solver.parameters(device)
    size = _solver.routine("xpotrf_buffer_size")(
        handle, choices, _solver.LOWER, n, kind, A.data_ptr(), row, kind
    )
    work, host_work = _solver.work_space(size[0], size[1], A)
    for item in range(items):
        _solver.routine("xpotrf")(
            handle, choices, _solver.LOWER, n, kind, A[item].data_ptr(), row, kind,
            work.data_ptr(), size[0], host_work.data_ptr(), size[1], code[item].data_ptr(),
        )  # fmt: skip
