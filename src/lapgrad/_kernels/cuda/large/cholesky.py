"""cuSOLVER's Cholesky factorisation, on the triangle where it is fast."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import solver as _solver


def factorise_upper(A: Tensor, code: int) -> None:
    """Overwrites the upper triangle of each item, the lower one to cuSOLVER, with R, A = Rᵀ R.

    A is (n, n) or (items, n, n). At the address ``code`` lie LAPACK's codes, an int32 per item.
    """
    device, kind, (n, row) = A.get_device(), _solver.DATA_TYPES[A.dtype], (A.shape[-1], A.stride(-2))
    handle, choices = _solver.get_handle(device), _solver.get_parameters(device)
    items, step = (1, 0) if A.dim() == 2 else (A.shape[0], A.stride(0) * A.element_size())
    size, host_size = _solver.get_workspace_size(
        "xpotrf_buffer_size",
        (device, n, row, kind),
        handle,
        choices,
        _solver.LOWER,
        n,
        kind,
        A.data_ptr(),
        row,
        kind,
    )
    work, host_work = _solver.allocate_workspace(size, host_size, A)
    for item in range(items):
        _solver.get_routine("xpotrf")(
            handle, choices, _solver.LOWER, n, kind, A.data_ptr() + item * step, row, kind,
            work.data_ptr(), size, host_work.data_ptr(), host_size, code + 4 * item,
        )  # fmt: skip
