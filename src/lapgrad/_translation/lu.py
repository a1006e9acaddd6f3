"""The operators that are made of LU factorisations, safe on any number of threads.

linalg_lu_factor_ex, linalg_lu, linalg_inv_ex, _linalg_det, _linalg_slogdet and _linalg_solve_ex. torch
factorises a batch by calling MKL's getrf from its own parallel loop; from a certain order on that hangs or
returns wrong factors. Here a batch is factorised by lapgrad's core, which keeps MKL on one thread in its
loops, or matrix by matrix. On CUDA lapgrad's kernels factorise matrices up to order 128, many at once, and as
with torch's the host does not wait for them. All other calls are torch's.

torch's gradients read the factors that its operators return besides the result. For a row-major matrix some
operators of torch return the factors of the transpose, which is copied faster, and so do these functions.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lapgrad._kernels.table import has_kernel, is_core_in_use, lookup
from lapgrad._torch import private as _torch_private
from lapgrad._torch.lu import LARGEST_UNBLOCKED_ORDER
from lapgrad._translation._results import allocate_column_major, allocate_status, count_items
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


def is_served_on_device(A: Tensor) -> bool:
    """Whether lapgrad's kernels for CUDA factorise ``A``: square, and not too large."""
    return (
        has_kernel("gesv_with_status", A)
        and has_kernel("inverse_with_status", A)
        and has_kernel("det_without_status", A)
        and has_kernel("slogdet_without_status", A)
        and A.shape[-1] == A.shape[-2]
        and bool(lookup("serves_gesv_with_status", A)(A))
    )


def compute_lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Factors:
    """Return LU (column-major), pivots and info, as ``torch.linalg.lu_factor_ex`` does."""
    if pivot and is_served_on_device(A):
        LU, pivots, info = _allocate_factors(A)
        lookup("gesv_with_status", A)(LU.mT, pivots, info, None, A, None, False)
        if check_errors:
            _torch_private.check_status(info, "torch.linalg.lu_factor_ex", A.dim() == 2)
        return LU, pivots, info
    if not pivot or not is_unsafe(A):
        LU, pivots, info = run_torch("linalg_lu_factor_ex", A, pivot=pivot, check_errors=check_errors)
        return LU, pivots, info
    factors = _factor_batch(A)
    if check_errors:
        _torch_private.check_status(factors[2], "torch.linalg.lu_factor_ex", False)
    return factors


def compute_inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Return the inverse, column-major, and info; for a singular matrix both are torch's."""
    B, info = allocate_column_major(A, *A.shape[-2:]), allocate_status(A)
    if is_served_on_device(A):
        lookup("inverse_with_status", A)(B, info, A)
    elif lookup("inverse", A)(B, A) is not None:
        B, info = _invert_by_torch(A)
    if check_errors:
        _torch_private.check_status(info, "linalg.inv_ex", A.dim() == 2)
    return B, info


def compute_lu(A: Tensor, *, pivot: bool = True) -> Factors:
    """P, L and U, as torch unpacks them from the factors."""
    if not pivot or not is_unsafe(A):
        P, L, U = run_torch("linalg_lu", A, pivot=pivot)
        return P, L, U
    LU, pivots, _ = _factor_batch(A)
    P, L, U = torch.lu_unpack(LU, pivots)
    return P, L, U


def compute_det(A: Tensor) -> Factors:
    """Return the determinant, and the factors with their pivots."""
    if is_served_on_device(A):
        LU, pivots, _ = _allocate_factors(A)
        determinant = A.new_empty(A.shape[:-2])
        lookup("det_without_status", A)(determinant, LU.mT, pivots, _choose_side("_linalg_det", A))
        return determinant, LU, pivots
    if not is_unsafe(A):
        determinant, LU, pivots = run_torch("_linalg_det", A)
        return determinant, LU, pivots
    LU, pivots, _ = _factor_batch(_choose_side("_linalg_det", A))
    return _compute_sign_of_exchanges(LU, pivots) * LU.diagonal(dim1=-2, dim2=-1).prod(-1), LU, pivots


def compute_slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sign and logarithm of the absolute value of the determinant, and the factors with their pivots."""
    if is_served_on_device(A):
        LU, pivots, _ = _allocate_factors(A)
        sign, logarithm = A.new_empty(A.shape[:-2]), A.new_empty(A.shape[:-2])
        side = _choose_side("_linalg_slogdet", A)
        lookup("slogdet_without_status", A)(sign, logarithm, LU.mT, pivots, side)
        return sign, logarithm, LU, pivots
    if not is_unsafe(A):
        sign, logarithm, LU, pivots = run_torch("_linalg_slogdet", A)
        return sign, logarithm, LU, pivots
    LU, pivots, _ = _factor_batch(_choose_side("_linalg_slogdet", A))
    diagonal = LU.diagonal(dim1=-2, dim2=-1)
    sign = _compute_sign_of_exchanges(LU, pivots) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log_().sum(-1), LU, pivots


def compute_solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X with A X = B, or X A = B, the factors with their pivots, and info. B is a matrix or a vector."""
    if is_served_on_device(A):
        return _solve_on_device(A, B, left, check_errors)
    if not is_unsafe(A):
        X, LU, pivots, info = run_torch("_linalg_solve_ex", A, B, left=left, check_errors=check_errors)
        return X, LU, pivots, info
    is_transposed = _factors_transpose("_linalg_solve_ex", A)
    LU, pivots, info = _factor_batch(A.mT if is_transposed else A)
    if check_errors:
        _torch_private.check_status(info, "torch.linalg.solve_ex", False)
    columns = B.unsqueeze(-1) if is_vector_of(A, B) else B
    X = torch.linalg.lu_solve(LU, pivots, columns, left=left, adjoint=is_transposed)
    return _lay_out_solution(X, columns is not B, left), LU, pivots, info


def is_vector_of(A: Tensor, B: Tensor) -> bool:
    """Whether torch takes the right-hand side ``B`` for a vector, or one vector per matrix of ``A``."""
    return B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])


def _lay_out_solution(X: Tensor, is_vector: bool, left: bool) -> Tensor:
    if not is_vector:
        return X
    X = X.squeeze(-1)
    if not left or X.dim() == 1:
        return X
    # torch stores the vectors of a batch as the rows of a column-major matrix.
    return allocate_column_major(X, *X.shape[-2:]).copy_(X)


def _solve_on_device(
    A: Tensor, B: Tensor, left: bool, check_errors: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    LU, pivots, info = _allocate_factors(A)
    is_transposed = _factors_transpose("_linalg_solve_ex", A)
    columns = B.unsqueeze(-1) if is_vector_of(A, B) else B
    # X A = B is Aᵀ Xᵀ = Bᵀ. Either way the kernel gets column-major matrices on both sides.
    right = columns if left else columns.mT
    solution = allocate_column_major(right, *right.shape[-2:])
    side = A.mT if is_transposed else A
    lookup("gesv_with_status", A)(LU.mT, pivots, info, solution, side, right, is_transposed == left)
    if check_errors:
        _torch_private.check_status(info, "torch.linalg.solve_ex", A.dim() == 2)
    X = solution if left else solution.mT
    return _lay_out_solution(X, columns is not B, left), LU, pivots, info


def _allocate_factors(A: Tensor) -> Factors:
    """Memory for LU, column-major, pivots, and info, which is zero."""
    LU, pivots = allocate_column_major(A, *A.shape[-2:]), A.new_empty(A.shape[:-1], dtype=torch.int32)
    return LU, pivots, allocate_status(A)


def _choose_side(operator: str, A: Tensor) -> Tensor:
    """Return the matrices whose factors ``operator`` of torch returns: ``A``, or its transpose."""
    return A.mT if _factors_transpose(operator, A) else A


def _factors_transpose(operator: str, A: Tensor) -> bool:
    """Whether ``operator`` of torch returns the factors of the transpose of ``A``."""
    return A.is_contiguous() and _factors_transpose_of_row_major(operator)


@functools.cache
def _factors_transpose_of_row_major(operator: str) -> bool:
    # Releases of torch differ. The first pivot is the largest entry of the first column, 4, or of the first
    # row, 2.
    A = torch.tensor([[1.0, 2.0], [4.0, 3.0]], device="cpu")
    results = run_torch(operator, A, *([A] if operator == "_linalg_solve_ex" else []))
    (LU,) = (x for x in results[1:] if x.dim() == 2)
    return bool(LU[0, 0] == 2.0)


def _compute_sign_of_exchanges(LU: Tensor, pivots: Tensor) -> Tensor:
    """Return the determinant of the permutation: -1 for an odd number of exchanges of two different rows."""
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1.0 - 2.0 * ((pivots != places).sum(-1) % 2).to(LU.dtype)


def _factor_batch(A: Tensor) -> Factors:
    """LU, column-major, pivots and info of each matrix of a batch, square or not."""
    if A.shape[-1] == A.shape[-2] and is_core_in_use():
        LU, pivots = allocate_column_major(A, *A.shape[-2:]), A.new_empty(A.shape[:-1], dtype=torch.int32)
        numbers = A.new_empty((2, *A.shape[:-2]))
        # The core leaves the factors of the transpose of its argument, column-major.
        if lookup("slogdet", A)(numbers[0], numbers[1], LU.mT, pivots, A.mT) is None:
            return LU, pivots, _find_first_zero(LU.diagonal(dim1=-2, dim2=-1))
    parts = [run_torch("linalg_lu_factor_ex", matrix) for matrix in A.reshape(-1, *A.shape[-2:]).unbind()]
    LU, pivots, info = (torch.stack(results) for results in zip(*parts, strict=True))
    copy = allocate_column_major(A, *A.shape[-2:]).copy_(LU.view(A.shape))
    return copy, pivots.view(*A.shape[:-2], -1), info.view(A.shape[:-2])


def _find_first_zero(diagonal: Tensor) -> Tensor:
    """info of getrf: the number, from 1, of the first zero pivot of each matrix, 0 where there is none."""
    zero = diagonal == 0
    return torch.where(zero.any(-1), zero.to(torch.uint8).argmax(-1) + 1, 0).to(torch.int32)


def _invert_by_torch(A: Tensor) -> tuple[Tensor, Tensor]:
    if not is_unsafe(A):
        B, info = run_torch("linalg_inv_ex", A)
        return B, info
    parts = [run_torch("linalg_inv_ex", matrix) for matrix in A.reshape(-1, *A.shape[-2:]).unbind()]
    B, info = (torch.stack(results) for results in zip(*parts, strict=True))
    return allocate_column_major(A, *A.shape[-2:]).copy_(B.view(A.shape)), info.view(A.shape[:-2])
