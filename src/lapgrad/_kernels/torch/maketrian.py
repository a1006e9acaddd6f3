"""maketrian: unpack a triangle, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._formulas.packing import unpack


def maketrian(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    """A := zero, with v in a triangle: the inverse of ``extracttrian``."""
    A.zero_()
    unpack(A, v, offset, lower)
