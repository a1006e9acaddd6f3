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

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks, Engine
from lapgrad.distributed.blockcyclic.steps import Step, allocate_panels, list_steps, take_matrix
from lapgrad.ops.gemm import multiply_into
from lapgrad.ops.trsm import trsm


def invert_on_grid(engine: Engine, L: Blocks) -> None:
    """Overwrite a Cholesky factor L of A by the lower triangle of A⁻¹.

    Args:
        engine: Exchanges panels along rows and columns of the grid.
        L: In square blocks; only its lower triangle is read.
    """
    X, steps, panels = L.local, list_steps(L.layout), allocate_panels(L)
    for step in reversed(steps):
        _invert_triangle(engine, X, step, panels)
    for step in steps:
        _multiply_by_transpose(engine, X, step, panels)


def _invert_triangle(engine: Engine, X: Tensor, step: Step, panels: Sequence[Tensor]) -> None:
    """Compute the columns J of T, and subtract their part from the columns to the left."""
    # Stored transposed: the columns of X are contiguous, so copies run along the memory of both.
    columns = take_matrix(panels[0], step.size, X.shape[0] - step.row)
    if step.has_columns:
        _compute_columns(engine, X, step, columns)
    engine.share_along_row(columns, step.process_column)
    rows = take_matrix(panels[1], step.column, step.size)
    if step.has_rows:
        left = X[step.here, : step.column]
        rows.copy_(left.mT)
        left.zero_()
    engine.share_along_column(rows, step.process_row)
    multiply_into(X[step.row :, : step.column], columns.mT, rows.mT, alpha=-1.0, beta=1.0)


def _compute_columns(engine: Engine, X: Tensor, step: Step, columns: Tensor) -> None:
    """Compute T[J and below, J] = M[J and below, J] L_JJ⁻¹, with M_JJ = I, in X, and its transpose."""
    corner = X.new_empty(step.size, step.size)
    if step.has_rows:
        corner.copy_(X[step.here, step.own])
        X[step.here, step.own] = torch.eye(step.size, dtype=X.dtype, device=X.device)
    engine.share_along_column(corner, step.process_row)
    columns.copy_(X[step.row :, step.own].mT)
    # (M L_JJ⁻¹)ᵀ = L_JJ⁻ᵀ Mᵀ
    trsm(corner, columns, transpose=True, overwrite=True)
    X[step.row :, step.own] = columns.mT


def _multiply_by_transpose(engine: Engine, X: Tensor, step: Step, panels: Sequence[Tensor]) -> None:
    """Compute the rows J of A⁻¹, in place of those of T: later rows do not need them."""
    columns = take_matrix(panels[0], step.size, X.shape[0] - step.row)
    if step.has_columns:
        columns.copy_(X[step.row :, step.own].mT)
    engine.share_along_row(columns, step.process_column)
    rows = take_matrix(panels[1], step.size, step.right)
    multiply_into(rows, columns, X[step.row :, : step.right])
    engine.sum_over_column(rows)
    if step.has_rows:
        X[step.here, : step.right] = rows
