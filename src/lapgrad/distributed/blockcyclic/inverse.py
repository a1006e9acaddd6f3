"""The inverse of a matrix from its Cholesky factor, on a grid, by products of what each process holds.

With A = L Lᵀ, T = L⁻¹ and A⁻¹ = Tᵀ T, blocks J of rows and columns are treated one after the other; "left"
are the columns before J, "below" the rows after J. First L becomes T, from the last block to the first, and
then T becomes the lower triangle of A⁻¹, from the first to the last:

    T[below, J] = M[below, J] L_JJ⁻¹,   T_JJ = L_JJ⁻¹,   M[J and below, left] -= T[J and below, J] L[J, left]
    A⁻¹[J, left and J] = T[J and below, J]ᵀ T[J and below, left and J]

M starts as 0, and takes the place of L row by row. Entries below and to the left of J are a rectangle in the
memory of each process, so both are ordinary products, of 2/3 n³ flops in all. Per block of b columns,
processes exchange two panels in either half, of n b entries divided by the rows or columns of the grid. The
products are those of several blocks at a time.

T is the solution of T L = I, not of L T = I: A Tᵀ T = L (T L)ᵀ T is as near to I as T L is.

cuSOLVERMp has no routine for the inverse. ScaLAPACK's takes half as long again, because it solves with
triangular matrices, in which processes wait for each other. (Takahashi's recursion for A⁻¹ from the last
block to the first needs one product only, but loses twice as many digits of ill-conditioned matrices.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks, Engine
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.ops.trsm import trsm

#: Blocks are treated in groups of about so many columns: products with more columns read the matrix fewer
#: times.
_GROUP = 512


def invert_on_grid(engine: Engine, L: Blocks) -> None:
    """Overwrite a Cholesky factor L of A by the lower triangle of A⁻¹.

    Args:
        engine: Exchanges panels along rows and columns of the grid.
        L: In square blocks; only its lower triangle is read.
    """
    block = L.layout.row_block
    steps = [_find_step(L.layout, begin) for begin in range(0, L.layout.rows, block)]
    count = max(1, _GROUP // block)
    groups = [steps[first : first + count] for first in range(0, len(steps), count)]
    for group in reversed(groups):
        _invert_triangle(engine, L.local, group)
    for group in groups:
        _multiply_by_transpose(engine, L.local, group)


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


def _invert_triangle(engine: Engine, X: Tensor, group: Sequence[_Step]) -> None:
    """Compute the columns of T in a group of blocks, and subtract their part from the columns to the left."""
    first = group[0]
    # Panels are stored transposed: the columns of X are contiguous, so copies run along the memory of both.
    columns = X.new_empty(sum(step.size for step in group), X.shape[0] - first.row)
    rows = X.new_empty(len(columns), first.column)
    for step, own in reversed(list(zip(group, _list_slices(group), strict=True))):
        panel = columns[own]
        _compute_columns(engine, X, step, panel)
        # Columns to the left within the group are needed at once, those further left after the whole group.
        near = slice(first.column, step.column)
        across = X.new_empty(step.size, step.column - first.column)
        if step.has_rows:
            across.copy_(X[step.row : step.below, near])
            rows[own] = X[step.row : step.below, : first.column]
            X[step.row : step.below, : step.column] = 0.0
        engine.share_along_column(across, step.process_row)
        engine.share_along_column(rows[own], step.process_row)
        X[first.row :, near].addmm_(panel.mT, across, alpha=-1.0)
    X[first.row :, : first.column].addmm_(columns.mT, rows, alpha=-1.0)


def _compute_columns(engine: Engine, X: Tensor, step: _Step, panel: Tensor) -> None:
    """Compute T[J and below, J] = M[J and below, J] L_JJ⁻¹, with M_JJ = I, in X and in ``panel``.

    Args:
        engine: Exchanges panels.
        X: Holds M, and gets T.
        step: The block J.
        panel: Gets the transpose, on all processes: zeros for rows of the group above J, and then T.
    """
    own, above = slice(step.column, step.right), panel.shape[1] - (X.shape[0] - step.row)
    if step.has_columns:
        corner = X.new_empty(step.size, step.size)
        if step.has_rows:
            corner.copy_(X[step.row : step.below, own])
            X[step.row : step.below, own] = torch.eye(step.size, dtype=X.dtype, device=X.device)
        engine.share_along_column(corner, step.process_row)
        panel[:, :above] = 0.0
        panel[:, above:] = X[step.row :, own].mT
        # (M L_JJ⁻¹)ᵀ = L_JJ⁻ᵀ Mᵀ
        trsm(corner, panel, transpose=True, overwrite=True)
        X[step.row :, own] = panel[:, above:].mT
    engine.share_along_row(panel, step.process_column)


def _multiply_by_transpose(engine: Engine, X: Tensor, group: Sequence[_Step]) -> None:
    """Compute the rows of A⁻¹ in a group of blocks, in place of those of T: later rows do not need them."""
    first, last = group[0], group[-1]
    columns = X.new_empty(sum(step.size for step in group), X.shape[0] - first.row)
    for step, own in zip(group, _list_slices(group), strict=True):
        if step.has_columns:
            columns[own, : step.row - first.row] = 0.0
            columns[own, step.row - first.row :] = X[step.row :, step.column : step.right].mT
        engine.share_along_row(columns[own], step.process_column)
        if step.has_rows:  # what stands above the diagonal is not part of T
            X[step.row : step.below, step.right : last.right] = 0.0
    rows = X[first.row :, : last.right].mT @ columns.mT
    engine.sum_over_column(rows)
    for step, own in zip(group, _list_slices(group), strict=True):
        if step.has_rows:
            X[step.row : step.below, : last.right] = rows[:, own].mT


def _list_slices(group: Sequence[_Step]) -> list[slice]:
    """Return the columns of each block, counted from the first one of the group."""
    ends = list(itertools.accumulate(step.size for step in group))
    return [slice(end - step.size, end) for end, step in zip(ends, group, strict=True)]
