"""The inverse of a matrix from its Cholesky factor, on a grid, by products of what each process holds.

With A = L Lᵀ, T = L⁻¹ and A⁻¹ = Tᵀ T, blocks J of rows and columns are treated one after the other; "left"
are the columns before J, "below" the rows after J. First L becomes T, from the last block to the first, and
then T becomes the lower triangle of A⁻¹, from the first to the last:

    T[below, J] = M[below, J] L_JJ⁻¹,   T_JJ = L_JJ⁻¹,   M[J and below, left] -= T[J and below, J] L[J, left]
    A⁻¹[J, left and J] = T[J and below, J]ᵀ T[J and below, left and J]

M starts as 0, and takes the place of L row by row. Entries below and to the left of J are a rectangle in the
memory of each process, so both are ordinary products, of 2/3 n³ flops in all. Per block of b columns,
processes exchange two panels in either half, of n b entries divided by the rows or columns of the grid.

T is the solution of T L = I, not of L T = I: A Tᵀ T = L (T L)ᵀ T is as near to I as T L is.

cuSOLVERMp has no routine for the inverse. ScaLAPACK's takes half as long again, because it solves with
triangular matrices, in which processes wait for each other. (Takahashi's recursion for A⁻¹ from the last
block to the first needs one product only, but loses twice as many digits of ill-conditioned matrices.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lapgrad.distributed.blockcyclic.engine import Blocks, Engine
from lapgrad.distributed.blockcyclic.layout import Layout


def invert_on_grid(engine: Engine, L: Blocks) -> None:
    """Overwrite a Cholesky factor L of A by the lower triangle of A⁻¹.

    Args:
        engine: Adds up numbers along rows and columns of the grid.
        L: In square blocks; only its lower triangle is read.
    """
    steps = [_find_step(L.layout, begin) for begin in range(0, L.layout.rows, L.layout.row_block)]
    for step in reversed(steps):
        _invert_triangle(engine, L, step)
    for step in steps:
        _multiply_by_transpose(engine, L, step)


class _Step(NamedTuple):
    """A block J of rows and columns, as this process sees it.

    Attributes:
        size: Rows of J.
        has_rows, has_columns: Whether this process holds rows of J, and columns.
        row, below: How many rows before the first, and up to the last row of J this process holds.
        column, right: The same for columns.
    """

    size: int
    has_rows: bool
    has_columns: bool
    row: int
    below: int
    column: int
    right: int


def _find_step(layout: Layout, begin: int) -> _Step:
    end, number = min(begin + layout.row_block, layout.rows), begin // layout.row_block
    return _Step(
        end - begin,
        layout.process_row == number % layout.grid_rows,
        layout.process_column == number % layout.grid_columns,
        layout.count_rows_before(begin),
        layout.count_rows_before(end),
        layout.count_columns_before(begin),
        layout.count_columns_before(end),
    )


def _invert_triangle(engine: Engine, L: Blocks, step: _Step) -> None:
    """Compute the columns J of T, and subtract their part from the columns to the left."""
    X, (size, has_rows, has_columns, row, below, column, right) = L.local, step
    own_rows, own_columns = slice(row, below), slice(column, right)
    of_columns = X.new_zeros(X.shape[0] - row, size)
    if has_columns:
        corner = X.new_zeros(size, size)
        if has_rows:
            corner.copy_(X[own_rows, own_columns]).tril_()
        engine.sum_over_column(corner)
        if has_rows:
            X[own_rows, own_columns] = torch.eye(size, dtype=X.dtype, device=X.device)
        of_columns.copy_(torch.linalg.solve_triangular(corner, X[row:, own_columns], upper=False, left=False))
        X[row:, own_columns] = of_columns
    engine.sum_over_row(of_columns)
    of_rows = X.new_zeros(size, column)
    if has_rows:
        of_rows.copy_(X[own_rows, :column])
        X[own_rows, :column] = 0.0
    engine.sum_over_column(of_rows)
    X[row:, :column].addmm_(of_columns, of_rows, alpha=-1.0)


def _multiply_by_transpose(engine: Engine, T: Blocks, step: _Step) -> None:
    """Compute the rows J of A⁻¹, in place of those of T: later rows do not need them."""
    X, (size, has_rows, has_columns, row, below, column, right) = T.local, step
    of_columns = X.new_zeros(X.shape[0] - row, size)
    if has_columns:
        of_columns.copy_(X[row:, column:right])
    engine.sum_over_row(of_columns)
    of_rows = of_columns.mT @ X[row:, :right]
    engine.sum_over_column(of_rows)
    if has_rows:
        X[row:below, :right] = of_rows
