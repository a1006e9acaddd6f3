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
from lapgrad.ops.trsm import trsm


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
        process_row, process_column: Where in the grid its rows and columns are.
        has_rows, has_columns: Whether they are here.
        row, below: How many rows before the first, and up to the last row of J this process holds.
        column, right: The same for columns.
    """

    size: int
    process_row: int
    process_column: int
    has_rows: bool
    has_columns: bool
    row: int
    below: int
    column: int
    right: int


def _find_step(layout: Layout, begin: int) -> _Step:
    end, number = min(begin + layout.row_block, layout.rows), begin // layout.row_block
    process_row, process_column = number % layout.grid_rows, number % layout.grid_columns
    return _Step(
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


def _invert_triangle(engine: Engine, L: Blocks, step: _Step) -> None:
    """Compute the columns J of T, and subtract their part from the columns to the left."""
    X, here = L.local, step
    own_rows, own_columns = slice(here.row, here.below), slice(here.column, here.right)
    # Panels are stored transposed: the columns of X are contiguous, so copies run along the memory of both.
    columns = X.new_empty(here.size, X.shape[0] - here.row)
    if here.has_columns:
        corner = X.new_empty(here.size, here.size)
        if here.has_rows:
            corner.copy_(X[own_rows, own_columns])
            X[own_rows, own_columns] = torch.eye(here.size, dtype=X.dtype, device=X.device)
        engine.share_along_column(corner, here.process_row)
        columns.copy_(X[here.row :, own_columns].mT)
        # (M L_JJ⁻¹)ᵀ = L_JJ⁻ᵀ Mᵀ
        trsm(corner, columns, transpose=True, overwrite=True)
        X[here.row :, own_columns] = columns.mT
    engine.share_along_row(columns, here.process_column)
    rows = X.new_empty(here.column, here.size)
    if here.has_rows:
        rows.copy_(X[own_rows, : here.column].mT)
        X[own_rows, : here.column] = 0.0
    engine.share_along_column(rows, here.process_row)
    X[here.row :, : here.column].addmm_(columns.mT, rows.mT, alpha=-1.0)


def _multiply_by_transpose(engine: Engine, T: Blocks, step: _Step) -> None:
    """Compute the rows J of A⁻¹, in place of those of T: later rows do not need them."""
    X, here = T.local, step
    columns = X.new_empty(here.size, X.shape[0] - here.row)
    if here.has_columns:
        columns.copy_(X[here.row :, here.column : here.right].mT)
    engine.share_along_row(columns, here.process_column)
    rows = X[here.row :, : here.right].mT @ columns.mT
    engine.sum_over_column(rows)
    if here.has_rows:
        X[here.row : here.below, : here.right] = rows.mT
