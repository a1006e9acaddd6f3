"""linalg_lu_factor_ex and linalg_inv_ex, safe on any number of threads.

torch factorises a batch by calling MKL's getrf from its own parallel loop; from a certain order on that hangs
or returns wrong factors. Here a batch is factorised by lapgrad's core, which keeps MKL on one thread in its
loops, or matrix by matrix. All other calls are torch's. torch's solve, det and slogdet factorise by
linalg_lu_factor_ex, and so do the gradients that factorise at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.table import core_in_use, lookup
from lapgrad._torch import private as _torch_private
from lapgrad._torch.lu import LARGEST_UNBLOCKED_ORDER
from lapgrad._translation._results import column_major, count_items, status
from lapgrad._translation._torch_kernels import run_torch

Factors = tuple[Tensor, Tensor, Tensor]


def is_unsafe(A: Tensor) -> bool:
    """Whether torch's own factorisation of ``A`` (*batch, m, n) could meet the fault."""
    return (
        A.dim() > 2
        and min(A.shape[-2:]) > LARGEST_UNBLOCKED_ORDER
        and A.is_cpu
        and count_items(A) > 1
        and torch.get_num_threads() > 1
    )


def compute_lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Factors:
    """LU, column-major, pivots and info: torch's."""
    if not pivot or not is_unsafe(A):
        LU, pivots, info = run_torch("linalg_lu_factor_ex", A, pivot=pivot, check_errors=check_errors)
        return LU, pivots, info
    factors = _factor_batch(A)
    if check_errors:
        _torch_private.check_status(factors[2], "torch.linalg.lu_factor_ex", False)
    return factors


def compute_inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The inverse, column-major, and info; what torch leaves for a singular matrix."""
    B, info = column_major(A, *A.shape[-2:]), status(A)
    if lookup("inverse", A)(B, A) is not None:
        B, info = _invert_by_torch(A)
    if check_errors:
        _torch_private.check_status(info, "linalg.inv_ex", A.dim() == 2)
    return B, info


def _factor_batch(A: Tensor) -> Factors:
    """LU, column-major, pivots and info of each matrix of a batch, square or not."""
    if A.shape[-1] == A.shape[-2] and core_in_use():
        LU, pivots = column_major(A, *A.shape[-2:]), A.new_empty(A.shape[:-1], dtype=torch.int32)
        numbers = A.new_empty((2, *A.shape[:-2]))
        # The core leaves the factors of the transpose of its argument, column-major.
        if lookup("slogdet", A)(numbers[0], numbers[1], LU.mT, pivots, A.mT) is None:
            return LU, pivots, _first_zero(LU.diagonal(dim1=-2, dim2=-1))
    parts = [run_torch("linalg_lu_factor_ex", matrix) for matrix in A.reshape(-1, *A.shape[-2:]).unbind()]
    LU, pivots, info = (torch.stack(results) for results in zip(*parts, strict=True))
    copy = column_major(A, *A.shape[-2:]).copy_(LU.view(A.shape))
    return copy, pivots.view(*A.shape[:-2], -1), info.view(A.shape[:-2])


def _first_zero(diagonal: Tensor) -> Tensor:
    """info of getrf: the number, from 1, of the first zero pivot of each matrix, 0 where there is none."""
    zero = diagonal == 0
    return torch.where(zero.any(-1), zero.to(torch.uint8).argmax(-1) + 1, 0).to(torch.int32)


def _invert_by_torch(A: Tensor) -> tuple[Tensor, Tensor]:
    if not is_unsafe(A):
        B, info = run_torch("linalg_inv_ex", A)
        return B, info
    parts = [run_torch("linalg_inv_ex", matrix) for matrix in A.reshape(-1, *A.shape[-2:]).unbind()]
    B, info = (torch.stack(results) for results in zip(*parts, strict=True))
    return column_major(A, *A.shape[-2:]).copy_(B.view(A.shape)), info.view(A.shape[:-2])
