"""Where the entries of a matrix lie on a grid of processes: blocks in turn, as in ScaLAPACK and cuSOLVERMp.

Along either dimension, index g belongs to block g // b. Blocks are dealt out to the p processes of that
dimension in turn, beginning with process 0, and a process stores its blocks one after the other:

    process of g = (g // b) mod p,   position of g there = (g // (b p)) b + g mod b

The indices of a process are increasing, so the entries at or below a diagonal entry are a suffix of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def count_local(count: int, block: int, process: int, processes: int) -> int:
    """Return how many of the indices 0, ..., count - 1 a process holds."""
    rounds, rest = divmod(count, block * processes)
    return rounds * block + min(max(rest - process * block, 0), block)


def list_local(
    count: int, block: int, process: int, processes: int, device: torch.device | None = None
) -> Tensor:
    """Return the indices below ``count`` that a process holds, in the order in which it stores them."""
    position = torch.arange(count_local(count, block, process, processes), device=device)
    within, turn = position % block, torch.div(position, block, rounding_mode="floor")
    return (turn * processes + process) * block + within


@dataclass(frozen=True)
class Layout:
    """How a matrix is spread over a grid, and which part of it this process holds.

    Attributes:
        rows, columns: Size of the whole matrix.
        row_block, column_block: Size of a block.
        grid_rows, grid_columns: Size of the grid of processes.
        process_row, process_column: Position of this process in the grid.
    """

    rows: int
    columns: int
    row_block: int
    column_block: int
    grid_rows: int
    grid_columns: int
    process_row: int
    process_column: int

    @property
    def local_shape(self) -> tuple[int, int]:
        """Rows and columns that this process holds."""
        return self.count_rows_before(self.rows), self.count_columns_before(self.columns)

    def count_rows_before(self, row: int) -> int:
        """Return how many rows of the matrix before ``row`` this process holds."""
        return count_local(row, self.row_block, self.process_row, self.grid_rows)

    def count_columns_before(self, column: int) -> int:
        """Return how many columns of the matrix before ``column`` this process holds."""
        return count_local(column, self.column_block, self.process_column, self.grid_columns)

    def list_rows(self, device: torch.device | None = None) -> Tensor:
        """Return the rows of the matrix that this process holds, increasing."""
        return list_local(self.rows, self.row_block, self.process_row, self.grid_rows, device)

    def list_columns(self, device: torch.device | None = None) -> Tensor:
        """Return the columns of the matrix that this process holds, increasing."""
        return list_local(self.columns, self.column_block, self.process_column, self.grid_columns, device)

    def list_diagonal(self, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the diagonal entries that this process holds: their index, and local row and column."""
        rows, columns = self.list_rows(device), self.list_columns(device)
        position = torch.searchsorted(columns, rows)
        if not len(columns):
            empty = rows[:0]
            return empty, empty, empty
        found = columns[position.clamp(max=len(columns) - 1)] == rows
        local_row = torch.arange(len(rows), device=device)[found]
        return rows[found], local_row, position[found]

    def transpose(self) -> Layout:
        """Return the layout of the transposed matrix on the same grid."""
        return self.resize(self.columns, self.rows, self.column_block, self.row_block)

    def resize(self, rows: int, columns: int, row_block: int, column_block: int) -> Layout:
        """Return the layout of another matrix on the same grid."""
        return Layout(
            rows,
            columns,
            row_block,
            column_block,
            self.grid_rows,
            self.grid_columns,
            self.process_row,
            self.process_column,
        )


def allocate_local(layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory for the entries of this process, undefined: a matrix stored by columns."""
    rows, columns = layout.local_shape
    return torch.empty(columns, rows, dtype=dtype, device=device).mT
