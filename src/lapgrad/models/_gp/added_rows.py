"""The Cholesky factor of a matrix that has grown by some rows and columns, from that of the matrix before.

    | A   Bᵀ |   | L       |  | Lᵀ  Wᵀ |
    | B   C  | = | W   M   |  |     Mᵀ |,    W = B L⁻ᵀ,   M Mᵀ = C - W Wᵀ

With n rows before and m new ones it takes n² m + n m² + m³ / 3 flops, where a new factorisation takes (n +
m)³ / 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm


def extend_factor(L: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return the factor (n + m, n + m) of the grown matrix.

    Args:
        L: (n, n), the factor of A.
        B: (m, n).
        C: (m, m).

    Raises:
        NotPositiveDefiniteError: The grown matrix is not positive definite.
    """
    n, m = len(L), len(C)
    W = trsm(L, B.mT).mT
    grown = L.new_zeros(n + m, n + m)
    grown[:n, :n] = L
    grown[n:, :n] = W
    grown[n:, n:] = torch.tril(potrf(C - syrk(W)))
    return grown
