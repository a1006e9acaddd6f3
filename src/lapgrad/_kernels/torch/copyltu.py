"""copyltu: mirror a triangle, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def copyltu(B: Tensor, A: Tensor, lower: bool) -> None:
    """B := the symmetric matrix with A's named triangle."""
    if not lower:
        A = A.mT
    B.copy_(A.tril() + A.tril(-1).mT)
