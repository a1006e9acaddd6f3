"""A block of a matrix in memory, as plain numbers.

Slicing a tensor takes torch longer than cuBLAS takes to start a small product. The algorithms here cut matrices
into many blocks; they do so with addresses and strides, and leave tensors to those who own the memory.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Block(NamedTuple):
    """Equally shaped matrices: element (i, j) of the k-th is k step + i row + j col elements on."""

    address: int
    rows: int
    cols: int
    row: int
    col: int
    bytes: int
    items: int = 1
    step: int = 0

    def part(self, top: int, bottom: int, left: int, right: int) -> Block:
        """Rows from ``top`` to before ``bottom``, columns likewise."""
        address = self.address + (top * self.row + left * self.col) * self.bytes
        return Block(
            address, bottom - top, right - left, self.row, self.col, self.bytes, self.items, self.step
        )

    @property
    def mT(self) -> Block:  # noqa: N802, as in torch
        """The same memory, transposed."""
        address, rows, cols, row, col, size, items, step = self
        return Block(address, cols, rows, col, row, size, items, step)

    def item(self, index: int) -> Block:
        """One of the matrices."""
        address, rows, cols, row, col, size, _, step = self
        return Block(address + index * step * size, rows, cols, row, col, size)

    def diagonal_blocks(self, top: int, left: int, order: int, distance: int, items: int) -> Block:
        """Squares, the first at (top, left), each ``distance`` further down and right than the last."""
        address = self.address + (top * self.row + left * self.col) * self.bytes
        return Block(
            address, order, order, self.row, self.col, self.bytes, items, distance * (self.row + self.col)
        )


def block_of(A: Tensor) -> Block:
    """All of A: (m, n) or (items, m, n)."""
    if A.dim() == 2:
        rows, cols = A.shape
        row, col = A.stride()
        return Block(A.data_ptr(), rows, cols, row, col, A.element_size())
    items, rows, cols = A.shape
    step, row, col = A.stride()
    return Block(A.data_ptr(), rows, cols, row, col, A.element_size(), items, step)
