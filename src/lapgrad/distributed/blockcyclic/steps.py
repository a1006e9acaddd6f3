"""The blocks of rows and columns of a square matrix on a grid as a process sees them, one after the other."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.layout import Layout


class Step(NamedTuple):
    """A block J of rows and columns.

    Attributes:
        begin: The first row of J.
        size: Rows of J.
        process_row, process_column: Where in the grid its rows and columns are.
        has_rows, has_columns: Whether they are here.
        row, below: How many rows before the first, and up to the last row of J this process holds.
        column, right: The same for columns.
    """

    begin: int
    size: int
    process_row: int
    process_column: int
    has_rows: bool
    has_columns: bool
    row: int
    below: int
    column: int
    right: int

    @property
    def here(self) -> slice:
        """The rows of J among those of this process."""
        return slice(self.row, self.below)

    @property
    def own(self) -> slice:
        """The columns of J among those of this process."""
        return slice(self.column, self.right)


def list_steps(layout: Layout) -> list[Step]:
    """Return all blocks of a matrix in square blocks."""
    return [_find_step(layout, begin) for begin in range(0, layout.rows, layout.row_block)]


def _find_step(layout: Layout, begin: int) -> Step:
    end, number = min(begin + layout.row_block, layout.rows), begin // layout.row_block
    process_row, process_column = number % layout.grid_rows, number % layout.grid_columns
    return Step(
        begin,
        end - begin,
        process_row,
        process_column,
        layout.process_row == process_row,
        layout.process_column == process_column,
        layout.count_rows_before(begin),
        layout.count_rows_before(end),
        layout.count_columns_before(begin),
        layout.count_columns_before(end),
    )


def allocate_panels(A: Blocks) -> tuple[Tensor, Tensor]:
    """Return memory for a block of columns with all local rows, and one of rows with all local columns.

    It is allocated once for all blocks: the system clears new memory, which takes as long as a copy.
    """
    rows, columns = A.local.shape
    return A.local.new_empty(rows * A.layout.row_block), A.local.new_empty(columns * A.layout.row_block)


def take_matrix(memory: Tensor, rows: int, columns: int) -> Tensor:
    """Return a matrix (rows, columns) that uses the first entries of the vector ``memory``."""
    return memory[: rows * columns].view(rows, columns)
