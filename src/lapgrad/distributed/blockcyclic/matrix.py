"""A matrix that is spread over a grid of processes in blocks, and how tensors get onto the grid and back.

All processes run the same program. What is the same on each of them is called replicated: data, parameters,
and losses. The gradient of a replicated loss with respect to a replicated tensor is replicated, too. Two
functions carry this over the border between replicated tensors and blocks:

    spread   replicated to own part:  forward nothing to do,   backward the sum over all processes
    collect  own part to replicated:  forward the sum,         backward nothing to do
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad._torch import layout as _checks
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.distributed.blockcyclic.layout import Layout, allocate_local


class BlockCyclicMatrix:
    """An n x m matrix whose blocks are spread over the processes of a grid.

    Operators (``lapgrad.distributed.potrf``, ``trsm``, ``potri``) take and return such matrices, and record
    gradients, which reach ``local``.

    Args:
        grid: The processes.
        layout: Where entries lie; of ``grid.make_layout``.
        local: The entries of this process, of the shape ``layout.local_shape``.

    Attributes:
        shape: (n, m).
        dtype, device: Those of ``local``.

    Example:
        >>> import torch
        >>> from lapgrad.distributed import BlockCyclicMatrix, make_grid
        >>> A = BlockCyclicMatrix.from_dense(torch.eye(3), make_grid(block=2))
        >>> A.shape, A.to_dense().trace()
        ((3, 3), tensor(3.))
    """

    def __init__(self, grid: ProcessGrid, layout: Layout, local: Tensor) -> None:
        if tuple(local.shape) != layout.local_shape:
            raise _exceptions.ShapeError(
                f"BlockCyclicMatrix: process {grid.rank} holds {layout.local_shape} entries of a matrix of "
                f"shape {(layout.rows, layout.columns)}, got {tuple(local.shape)}."
            )
        if local.device.type != grid.device.type:
            raise _exceptions.DeviceError(
                f"BlockCyclicMatrix: the grid computes on {grid.device.type}, and the blocks are on "
                f"{local.device.type}."
            )
        self.grid, self.layout, self.local = grid, layout, local

    @classmethod
    def from_dense(
        cls, A: Tensor, grid: ProcessGrid, *, column_block: int | None = None
    ) -> BlockCyclicMatrix:
        """Return the blocks of a matrix (n, m) that is the same on all processes. Differentiable.

        Args:
            A: (n, m), float32 or float64.
            grid: The processes.
            column_block: Columns of a block; None: ``grid.block``.
        """
        if _checks.check_matrix("BlockCyclicMatrix.from_dense", "A", A).dim() != 2:
            raise _exceptions.ShapeError(
                f"BlockCyclicMatrix: A must be one matrix, got shape {tuple(A.shape)}."
            )
        layout = grid.make_layout(*A.shape, column_block=column_block)
        rows, columns = layout.list_rows(A.device), layout.list_columns(A.device)
        return cls(grid, layout, store_by_columns(spread(A, grid)[rows[:, None], columns]))

    def to_dense(self) -> Tensor:
        """Return the whole matrix (n, m), the same on all processes. Differentiable.

        Every process needs memory for all of it.
        """
        rows, columns = (index(self.device) for index in (self.layout.list_rows, self.layout.list_columns))
        whole = self.local.new_zeros(self.shape).index_put((rows[:, None], columns), self.local)
        return collect(whole, self.grid)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return self.layout.rows, self.layout.columns

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the entries."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """The device of the entries of this process."""
        return self.local.device

    def __repr__(self) -> str:
        n, m = self.shape
        return (
            f"BlockCyclicMatrix({n} x {m}, {self.dtype}, {tuple(self.local.shape)} entries here, {self.grid})"
        )


def spread(values: Tensor, grid: ProcessGrid) -> Tensor:
    """Return a replicated tensor that each process uses in part: backward adds up their gradients."""
    result: Tensor = _Spread.apply(values, grid)
    return result


def collect(values: Tensor, grid: ProcessGrid) -> Tensor:
    """Return the sum over all processes, replicated: backward hands the replicated gradient to each."""
    result: Tensor = _Collect.apply(values, grid)
    return result


def store_by_columns(values: Tensor) -> Tensor:
    """Return a matrix with the same entries, stored by columns."""
    return values.mT.contiguous().mT


def copy_blocks(blocks: Blocks) -> Blocks:
    """Return a copy that a routine may overwrite."""
    copy = allocate_local(blocks.layout, blocks.local.dtype, blocks.local.device)
    return Blocks(blocks.layout, copy.copy_(blocks.local))


def store_blocks_by_columns(blocks: Blocks) -> Blocks:
    """Return the blocks themselves if they are stored as engines read them, else a copy that is."""
    return blocks if blocks.local.mT.is_contiguous() else copy_blocks(blocks)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grid: ProcessGrid) -> Tensor:
        ctx.grid = grid
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.grid.sum(gradient), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grid: ProcessGrid) -> Tensor:
        return grid.sum(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
