"""extracttrian: pack a triangle, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._formulas.packing import pack


def extracttrian(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    """v := the entries of a triangle of A: row by row for a lower one, column by column for an upper one."""
    pack(v, A, offset, lower)
