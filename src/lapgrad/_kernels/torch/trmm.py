"""trmm: triangular product, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._torch.precision import in_full_precision


@in_full_precision
def trmm(B: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    """B := t(L) A, or A t(L)."""
    triangle = L.tril() if lower else L.triu()
    if transpose:
        triangle = triangle.mT
    B.copy_(A @ triangle if rightside else triangle @ A)
