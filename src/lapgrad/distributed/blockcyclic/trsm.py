"""trsm: solves with a triangular matrix, on a grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.distributed.blockcyclic.matrix import BlockCyclicMatrix, copy_blocks, store_blocks_by_columns
from lapgrad.distributed.blockcyclic.potrf import check_square
from lapgrad.distributed.blockcyclic.triangles import allocate_blocks, clear_upper_triangle

_NAME = "distributed.trsm"


def trsm(
    L: BlockCyclicMatrix, A: BlockCyclicMatrix, *, transpose: bool = False, rightside: bool = False
) -> BlockCyclicMatrix:
    """Solve with a lower triangular matrix on a grid of processes: X = t(L)^-1 A, or X = A t(L)^-1.

    Args:
        L: (n, n). Only the lower triangle is read.
        A: (n, m), with ``rightside`` (m, n).
        transpose: Take L transposed.
        rightside: L stands on the right.

    Returns:
        X, of the shape of A.

    Raises:
        ShapeError: The matrices or their blocks do not fit.
        DTypeError: The matrices differ in dtype.

    Gradient:
        gA = t(L)^-T gX, and gL = -tril(gA X^T) (with ``transpose``: -tril(X gA^T)); on the right side
        gA = gX t(L)^-T, and gL = -tril(X^T gA) (with ``transpose``: -tril(gA^T X)). Saves L and X.

    Memory:
        forward 1 times the blocks of A, backward the blocks of A and of L

    Cost:
        forward n^2 m, backward 3 n^2 m flops over all processes.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import BlockCyclicMatrix, make_grid, trsm
        >>> grid = make_grid(block=2)
        >>> L = BlockCyclicMatrix.from_dense(2.0 * torch.eye(3), grid)
        >>> trsm(L, BlockCyclicMatrix.from_dense(torch.ones(3, 1), grid)).to_dense()[:, 0]
        tensor([0.5000, 0.5000, 0.5000])
    """
    check_square(_NAME, "L", L)
    _check_operands(L, A, rightside)
    local = _Trsm.apply(L.local, A.local, L.grid, L.layout, A.layout, transpose, rightside)
    return BlockCyclicMatrix(A.grid, A.layout, local)


def _check_operands(L: BlockCyclicMatrix, A: BlockCyclicMatrix, rightside: bool) -> None:
    if not isinstance(A, BlockCyclicMatrix):
        raise _exceptions.DTypeError(f"{_NAME}: A must be a BlockCyclicMatrix, got {type(A).__name__}.")
    if A.dtype != L.dtype:
        raise _errors.mixed_dtypes(_NAME, {"L": L.local, "A": A.local})
    size, block = (
        (A.layout.columns, A.layout.column_block) if rightside else (A.layout.rows, A.layout.row_block)
    )
    if size != L.layout.rows or block != L.layout.row_block:
        side = "columns" if rightside else "rows"
        raise _exceptions.ShapeError(
            f"{_NAME}: A must have {L.layout.rows} {side} in blocks of {L.layout.row_block} like L, got "
            f"shape {A.shape} in blocks of {A.layout.row_block} x {A.layout.column_block}."
        )


class _Trsm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        factor: Tensor,
        values: Tensor,
        grid: ProcessGrid,
        layout: Layout,
        layout_of_values: Layout,
        transpose: bool,
        rightside: bool,
    ) -> Tensor:
        X = copy_blocks(Blocks(layout_of_values, values))
        L = store_blocks_by_columns(Blocks(layout, factor))
        grid.engine.trsm(L, X, transpose=transpose, rightside=rightside)
        ctx.grid, ctx.layout, ctx.layout_of_values = grid, layout, layout_of_values
        ctx.transpose, ctx.rightside = transpose, rightside
        ctx.save_for_backward(L.local, X.local)
        return X.local

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        factor, solution = ctx.saved_tensors
        L, X = Blocks(ctx.layout, factor), Blocks(ctx.layout_of_values, solution)
        engine = ctx.grid.engine
        gA = copy_blocks(Blocks(ctx.layout_of_values, gX))
        engine.trsm(L, gA, transpose=not ctx.transpose, rightside=ctx.rightside)
        gL = None
        if ctx.needs_input_grad[0]:
            gL = allocate_blocks(ctx.layout, factor)
            first, second = (X, gA) if ctx.transpose != ctx.rightside else (gA, X)
            engine.gemm(first, second, gL, transpose_a=ctx.rightside, transpose_b=not ctx.rightside)
            clear_upper_triangle(gL)
            gL.local.neg_()
        return None if gL is None else gL.local, gA.local, None, None, None, None, None
