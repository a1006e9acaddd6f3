"""makediag: write a diagonal, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def makediag(A: Tensor, d: Tensor, offset: int) -> None:
    """A := zero, with d on the diagonal that lies ``offset`` above the main one."""
    A.zero_().diagonal(offset, -2, -1).copy_(d)
