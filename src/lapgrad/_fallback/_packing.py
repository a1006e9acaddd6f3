"""The order in which a triangle is packed into a vector."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


def packed_rows(v: Tensor, A: Tensor, offset: int, lower: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Each piece of the packed v, and the row it stands for: a table of indices would be as large as A.

    The sign of the offset, if any, chooses the triangle. Columns of an upper triangle are rows of A^T.
    """
    if offset > 0 or (offset == 0 and not lower):
        A = A.mT
    start = 0
    for length in range(1, A.shape[-1] - abs(offset) + 1):
        yield v[..., start : start + length], A[..., length - 1 + abs(offset), :length]
        start += length
