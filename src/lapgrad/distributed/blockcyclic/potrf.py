"""potrf: the Cholesky factor of a matrix that is spread over a grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.distributed.blockcyclic.matrix import BlockCyclicMatrix, copy_blocks
from lapgrad.distributed.blockcyclic.triangles import (
    add_transpose,
    allocate_blocks,
    check_factor,
    clear_upper_triangle,
    scale_diagonal,
)

_NAME = "distributed.potrf"


def potrf(A: BlockCyclicMatrix) -> BlockCyclicMatrix:
    """Cholesky factor of a symmetric positive definite matrix on a grid of processes: A = L L^T.

    Args:
        A: (n, n). Only the lower triangle is read.

    Returns:
        L, (n, n), with zeros above the diagonal.

    Raises:
        NotPositiveDefiniteError: A is not positive definite; names the leading minor, on all processes.
        NonFiniteError: A NaN or an infinity was met in A.
        ShapeError: A is not square, or not in square blocks.

    Gradient:
        gA = sym(L^-T phi(L^T gL) L^-1), with phi the lower triangle and half of the diagonal. Saves L.

    Memory:
        forward 1, backward 3 times the blocks of a process

    Cost:
        forward n^3/3, backward 4 n^3 flops over all processes: the products and solves of the engines do not
        leave out what is known to be zero.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import BlockCyclicMatrix, make_grid, potrf
        >>> A = BlockCyclicMatrix.from_dense(4.0 * torch.eye(3), make_grid(block=2))
        >>> potrf(A).to_dense().diagonal()
        tensor([2., 2., 2.])
    """
    check_square(_NAME, "A", A)
    return BlockCyclicMatrix(A.grid, A.layout, _Potrf.apply(A.local, A.grid, A.layout))


def check_square(who: str, name: str, A: BlockCyclicMatrix) -> None:
    """Raise if A is not a square matrix in square blocks."""
    if not isinstance(A, BlockCyclicMatrix):
        raise _exceptions.DTypeError(f"{who}: {name} must be a BlockCyclicMatrix, got {type(A).__name__}.")
    if A.shape[0] != A.shape[1]:
        raise _errors.not_square(who, name, A.shape)
    if A.layout.row_block != A.layout.column_block:
        raise _exceptions.ShapeError(
            f"{who}: {name} must be in square blocks, got {A.layout.row_block} x {A.layout.column_block}."
        )


class _Potrf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, grid: ProcessGrid, layout: Layout) -> Tensor:
        L = copy_blocks(Blocks(layout, local))
        check_factor(_NAME, grid.engine.potrf(L), L, grid)
        clear_upper_triangle(L)
        ctx.grid, ctx.layout = grid, layout
        ctx.save_for_backward(L.local)
        return L.local

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gL: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        grid, L = ctx.grid, Blocks(ctx.layout, factor)
        cotangent = copy_blocks(Blocks(ctx.layout, gL))
        clear_upper_triangle(cotangent)
        S = allocate_blocks(ctx.layout, factor)
        grid.engine.gemm(L, cotangent, S, transpose_a=True, transpose_b=False)
        clear_upper_triangle(S)
        scale_diagonal(S, 0.5)
        grid.engine.trsm(L, S, transpose=True, rightside=False)
        grid.engine.trsm(L, S, transpose=False, rightside=True)
        return add_transpose(S, grid).local.mul_(0.5), None, None
