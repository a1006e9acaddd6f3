"""Cholesky factorisation of large matrices, on the triangle where cuSOLVER's is fast.

From 8192 on cuSOLVER's own is slower than the same in large blocks, with products for all that is between
them. With A = Rᵀ R split in four,

    R11 = factor(A11),  R12 = R11⁻ᵀ A12,  R22 = factor(A22 - R12ᵀ R12)
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._cuda import _device, _launch, _sizes, _solver


def factorise_upper(A: Tensor, code: int) -> None:
    """Of each item the upper triangle, the lower one to cuSOLVER, becomes R with A = Rᵀ R.

    A is (n, n) or (items, n, n); what is below its diagonal may be overwritten. At the address ``code`` lie
    LAPACK's codes, an int32 per item.
    """
    for item, matrix in enumerate(A if A.dim() == 3 else (A,)):
        if A.shape[-1] < _sizes.FACTOR_BY_BLOCKS_FROM:
            factorise_block(matrix, code + 4 * item)
        else:
            _by_blocks(matrix, code + 4 * item)


def _by_blocks(A: Tensor, code: int) -> None:
    """One matrix, block after block; the first code that is not 0 counts, with the rows above its block."""
    part = torch.zeros(1, dtype=torch.int32, device=A.device)

    def factorise(block: Tensor, above: int) -> None:
        n, size = block.shape[-1], _sizes.FACTOR_BLOCK
        if n <= size:
            factorise_block(block, part.data_ptr() if above else code)
            if above:
                _launch.launch("triangle", "add_code", A, (1,), 1, 0, code, part.data_ptr(), above)
            return
        half = size * (-(-n // size) // 2)
        first, right, rest = block[:half, :half], block[:half, half:], block[half:, half:]
        factorise(first, above)
        _device.solve(right, first.mT, "l", _sizes.SOLVE_BLOCK)
        _device.triangular_product(rest, right.mT, right, False, -1.0, 1.0, _sizes.PRODUCT_CUT)
        factorise(rest, above + half)

    factorise(A, 0)


def factorise_block(A: Tensor, code: int) -> None:
    """The same of one matrix, (n, n), by cuSOLVER; its code is written at the address."""
    device, kind, (n, row) = A.get_device(), _solver.DATA_TYPES[A.dtype], (A.shape[-1], A.stride(-2))
    handle, choices = _solver.handle(device), _solver.parameters(device)
    size, host_size = _solver.routine("xpotrf_buffer_size")(
        handle, choices, _solver.LOWER, n, kind, A.data_ptr(), row, kind
    )
    work, host_work = _solver.work_space(size, host_size, A)
    _solver.routine("xpotrf")(
        handle, choices, _solver.LOWER, n, kind, A.data_ptr(), row, kind,
        work.data_ptr(), size, host_work.data_ptr(), host_size, code,
    )  # fmt: skip
