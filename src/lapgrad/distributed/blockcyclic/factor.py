"""The Cholesky factor of a matrix, on a grid, by products of what each process holds.

Blocks J of rows and columns are treated one after the other; "below" are the rows after J:

    L_JJ L_JJᵀ = A_JJ,   L[below, J] = A[below, J] L_JJ⁻ᵀ,   A[below, below] -= L[below, J] L[below, J]ᵀ

Per block of b columns, the processes of a row exchange a panel, L[below, J], and those of a column, in a sum,
the part of it that belongs to their columns: n b entries, divided by the rows or columns of the grid. Of the
symmetric matrix only blocks on and below the diagonal are updated.

ScaLAPACK's routine does the same. In one process it takes a third longer (order 4000).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks, Engine
from lapgrad.distributed.blockcyclic.steps import Step, allocate_panels, list_steps, take_matrix
from lapgrad.ops.gemm import multiply_into
from lapgrad.ops.potrf import potrf
from lapgrad.ops.trsm import trsm


def factor_on_grid(engine: Engine, A: Blocks) -> int:
    """Overwrite the lower triangle of A by its Cholesky factor.

    Args:
        engine: Exchanges panels along rows and columns of the grid.
        A: In square blocks; only its lower triangle is read.

    Returns:
        0, or the order of the leading minor that is not positive, on all processes. If a pivot is NaN or
        infinite, 0, and that pivot is NaN.
    """
    X, steps, panels = A.local, list_steps(A.layout), allocate_panels(A)
    for number, step in enumerate(steps):
        # Stored transposed: the columns of X are contiguous, so copies run along the memory of both.
        below = take_matrix(panels[0], step.size, X.shape[0] - step.below)
        status = X.new_empty(1)
        if step.has_columns:
            status.fill_(_factor_columns(engine, X, step, below))
        engine.share_along_row(status, step.process_column)
        if status != 0.0:
            return step.begin + int(status) if status > 0.0 else 0
        engine.share_along_row(below, step.process_column)
        _update_right(engine, X, below, step, steps[number + 1 :], panels[1])
    return 0


def _factor_columns(engine: Engine, X: Tensor, step: Step, below: Tensor) -> int:
    """Compute L[J and below, J] in X, and the transpose of L[below, J] in ``below``; return the status.

    The status is that of one matrix in the core: k if the leading minor k of A_JJ is not positive, and -k if
    pivot k is not finite.
    """
    corner, status = X.new_empty(step.size, step.size), X.new_empty(1)
    if step.has_rows:
        corner.copy_(X[step.here, step.own])
        status.fill_(_factor_block(corner))
        X[step.here, step.own] = corner
    engine.share_along_column(status, step.process_row)
    found = int(status)
    if found == 0:
        engine.share_along_column(corner, step.process_row)
        # (A L_JJ⁻ᵀ)ᵀ = L_JJ⁻¹ Aᵀ
        below.copy_(X[step.below :, step.own].mT)
        trsm(corner, below, overwrite=True)
        X[step.below :, step.own] = below.mT
    elif found < 0 and step.has_rows:
        X[step.row - found - 1, step.column - found - 1] = torch.nan
    return found


def _factor_block(A: Tensor) -> int:
    """Overwrite A by its Cholesky factor; return the status."""
    try:
        potrf(A, overwrite=True)
    except _exceptions.NotPositiveDefiniteError as error:
        return error.minor
    except _exceptions.NonFiniteError as error:
        return -error.pivot
    return 0


def _update_right(
    engine: Engine, X: Tensor, below: Tensor, step: Step, others: Sequence[Step], memory: Tensor
) -> None:
    """Subtract L[below, J] L[below, J]ᵀ from the columns to the right of J, at and below the diagonal."""
    own = [other for other in others if other.has_columns]
    # L[the columns of this process, J]: each row is on one process of this column of the grid.
    across = take_matrix(memory, X.shape[1] - step.right, step.size).zero_()
    for other in own:
        if other.has_rows:
            part = below[:, other.row - step.below : other.below - step.below]
            across[other.column - step.right : other.right - step.right] = part.mT
    engine.sum_over_column(across)
    for other in own:
        right = across[other.column - step.right : other.right - step.right]
        rows = below[:, other.row - step.below :]
        multiply_into(X[other.row :, other.own], rows.mT, right.mT, alpha=-1.0, beta=1.0)
