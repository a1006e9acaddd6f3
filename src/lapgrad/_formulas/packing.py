"""The order in which a triangle is packed into a vector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Up to this order each row is copied by itself; above it, tables of indices gather several rows at a time.
_ROW_BY_ROW = 16
#: Most indices of one table (one row may have more): a table for all of A would be larger than A.
_TABLE = 1 << 12


def pack(v: Tensor, A: Tensor, offset: int, lower: bool) -> None:
    """v := the entries of a triangle of A."""
    triangle = _turn_to_lower(A, offset, lower)
    for piece, rows, columns in _split_into_pieces(v, A.shape[-1], offset):
        piece.copy_(triangle[..., rows, columns])


def unpack(A: Tensor, v: Tensor, offset: int, lower: bool) -> None:
    """The entries of a triangle of A := v."""
    triangle = _turn_to_lower(A, offset, lower)
    for piece, rows, columns in _split_into_pieces(v, A.shape[-1], offset):
        triangle[..., rows, columns] = piece


def _turn_to_lower(A: Tensor, offset: int, lower: bool) -> Tensor:
    """Return A or A^T, whichever has the triangle below its diagonal.

    The sign of the offset, if any, chooses the triangle.
    """
    return A.mT if offset > 0 or (offset == 0 and not lower) else A


def _split_into_pieces(
    v: Tensor, n: int, offset: int
) -> Iterator[tuple[Tensor, Tensor | int, Tensor | slice]]:
    """Yield slices of the packed v, with the rows and columns of the lower triangle that they belong to."""
    first, start = abs(offset), 0
    while first < n:
        length = first - abs(offset) + 1  # of row `first`
        count = 1 if n <= _ROW_BY_ROW else max(1, min(n - first, _TABLE // (length + _ROW_BY_ROW)))
        if count == 1:
            yield v[..., start : start + length], first, slice(length)
        else:
            table = torch.tril_indices(count, length + count - 1, length - 1, device=v.device)
            length = table.shape[1]
            yield v[..., start : start + length], table[0] + first, table[1]
        first, start = first + count, start + length
