"""_cholesky_solve_helper and cholesky_inverse: what ``linalg.cho_solve`` and ``potri`` compute.

The gradients stay torch's: those with respect to the factor are not zero in the triangle that is not read,
and programs may rely on it. They are made of products and of these solves.
"""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._translation._results import allocate_column_major
from lapgrad._translation._torch_kernels import run_torch

#: With this few right-hand sides and these orders torch is faster on a CPU: too large for the kernel that has
#: one matrix per lane, too small for blocks.
_FEW_COLUMNS, _ORDERS_OF_TORCH = 4, range(25, 33)


def compute_cholesky_solve(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    """X = (L L^T)^-1 B, or (R^T R)^-1 B, column-major; leading dimensions are equal."""
    if not (B.is_cpu and B.shape[-1] <= _FEW_COLUMNS and L.shape[-1] in _ORDERS_OF_TORCH):
        X = allocate_column_major(B, *B.shape[-2:])
        if lookup("cho_solve", B)(X, L, B, not upper) is None:
            return X
    solution: Tensor = run_torch("_cholesky_solve_helper", B, L, upper)
    return solution


def compute_cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """(L L^T)^-1, or (R^T R)^-1, column-major; torch's error for a zero on the diagonal."""
    B = allocate_column_major(L, *L.shape[-2:])
    if lookup("potri", L)(B, L, not upper) is None:
        return B
    inverse: Tensor = run_torch("cholesky_inverse", L, upper)
    return inverse
