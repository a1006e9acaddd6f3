"""gesv: solve with a general matrix by LU factorisation, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.torch._lu import find_first_failure, find_status
from lapgrad._torch import lu as _torch_lu

#: Matrices with entries within this power of two of the ends of the range are multiplied by it.
_EXPONENT = 32


def gesv(
    X: Tensor, LU: Tensor, pivots: Tensor, A: Tensor, B: Tensor, transpose: bool
) -> tuple[int, int] | None:
    """X := A^-1 B, or A^-T B. Returns the first (item, status) that has no solution.

    LU, transposed, := the factors of A times a power of two; pivots := the n row exchanges and its exponent.
    """
    exponent = _choose_range_exponent(A)
    factors, exchanges = _torch_lu.lu_factor(torch.ldexp(A, exponent[..., None, None]))
    LU.copy_(factors.mT)
    pivots[..., :-1] = exchanges
    pivots[..., -1] = exponent
    status = find_status(factors, A)
    failure = find_first_failure(status != 0, status)
    if failure is None:
        gesv_factored(X, LU, pivots, B, transpose)
    return failure


def gesv_factored(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> None:
    """X := A^-1 B, or A^-T B, from what ``gesv`` has left in LU and pivots."""
    if not X.numel():
        return
    # Right-hand sides near the ends of the range are scaled, too: sums of products overflow before X does.
    exponent = _choose_range_exponent(B)
    scaled = torch.ldexp(B, exponent[..., None, None])
    solved = torch.linalg.lu_solve(LU.mT, pivots[..., :-1].contiguous(), scaled, adjoint=transpose)
    X.copy_(torch.ldexp(solved, (pivots[..., -1] - exponent)[..., None, None]))


def _choose_range_exponent(A: Tensor) -> Tensor:
    """Return an exponent of two per item, (*batch): 0 unless entries are near the ends of the range."""
    if not A.numel():
        return torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device)
    largest, limit = A.abs().amax((-2, -1)), torch.finfo(A.dtype).max / 2.0**_EXPONENT
    return _EXPONENT * ((largest < 1 / limit).int() - (largest > limit).int())
