"""extractdiag: read a diagonal, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def extractdiag(d: Tensor, A: Tensor, offset: int) -> None:
    """d := the diagonal of A that lies ``offset`` above the main one."""
    d.copy_(A.diagonal(offset, -2, -1))
