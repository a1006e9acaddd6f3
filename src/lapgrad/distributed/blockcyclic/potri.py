"""potri: the inverse of a matrix from its Cholesky factor, on a grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.layout import Layout
from lapgrad.distributed.blockcyclic.matrix import BlockCyclicMatrix, copy_blocks, store_blocks_by_columns
from lapgrad.distributed.blockcyclic.potrf import check_square
from lapgrad.distributed.blockcyclic.triangles import (
    add_transpose,
    allocate_blocks,
    clear_upper_triangle,
    mirror_lower_triangle,
)

_NAME = "distributed.potri"


def potri(L: BlockCyclicMatrix) -> BlockCyclicMatrix:
    """Inverse from the Cholesky factor, on a grid of processes: B = (L L^T)^-1.

    Args:
        L: (n, n), of ``distributed.potrf``. Only the lower triangle is read.

    Returns:
        B, (n, n), symmetric.

    Raises:
        ShapeError: L is not square, or not in square blocks.

    Gradient:
        gL = -tril(B (gB + gB^T) L^-T). Saves L and B.

    Memory:
        forward 2, backward 3 times the blocks of a process

    Cost:
        forward 2/3 n^3, backward 3 n^3 flops over all processes.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import BlockCyclicMatrix, make_grid, potri
        >>> L = BlockCyclicMatrix.from_dense(2.0 * torch.eye(3), make_grid(block=2))
        >>> potri(L).to_dense().diagonal()
        tensor([0.2500, 0.2500, 0.2500])
    """
    check_square(_NAME, "L", L)
    return BlockCyclicMatrix(L.grid, L.layout, _Potri.apply(L.local, L.grid, L.layout))


class _Potri(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, grid: ProcessGrid, layout: Layout) -> Tensor:
        inverse = copy_blocks(Blocks(layout, local))
        grid.engine.potri(inverse)
        B = mirror_lower_triangle(inverse, grid)
        ctx.grid, ctx.layout = grid, layout
        ctx.save_for_backward(local, B.local)
        return B.local

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gB: Tensor) -> tuple[Tensor, None, None]:
        factor, inverse = (Blocks(ctx.layout, local) for local in ctx.saved_tensors)
        engine = ctx.grid.engine
        both = add_transpose(copy_blocks(Blocks(ctx.layout, gB)), ctx.grid)
        gL = allocate_blocks(ctx.layout, gB)
        engine.gemm(inverse, both, gL, transpose_a=False, transpose_b=False)
        engine.trsm(store_blocks_by_columns(factor), gL, transpose=True, rightside=True)
        clear_upper_triangle(gL)
        return gL.local.neg_(), None, None
