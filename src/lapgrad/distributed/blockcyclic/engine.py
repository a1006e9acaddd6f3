"""The interface to a library of distributed linear algebra: the routines that this package calls."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lapgrad.distributed.blockcyclic.layout import Layout


class Blocks(NamedTuple):
    """The entries of a matrix that this process holds.

    Attributes:
        layout: Where they belong.
        local: (rows, columns) of this process, stored by columns (stride 1 along a column).
    """

    layout: Layout
    local: Tensor


class Engine(Protocol):
    """Routines on matrices that are spread over a grid of processes.

    All processes call the same routine with their own blocks, and wait for each other in it. Square matrices
    have square blocks. Of symmetric and triangular matrices the lower triangle is read and written.

    Attributes:
        name: "local", "scalapack" or "cusolvermp".
        rank, size: The number of this process, and how many there are.
        shape: Rows and columns of the grid.
        position: Row and column of this process.
        device: Where the blocks are.
    """

    name: str
    rank: int
    size: int
    shape: tuple[int, int]
    position: tuple[int, int]
    device: torch.device

    def potrf(self, A: Blocks) -> int:
        """Overwrite A by its Cholesky factor L; return 0, or the order of the leading minor that failed."""

    def potri(self, L: Blocks) -> None:
        """Overwrite the Cholesky factor L of A by the lower triangle of A⁻¹."""

    def potrs(self, L: Blocks, B: Blocks) -> None:
        """Overwrite B by (L Lᵀ)⁻¹ B."""

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        """Overwrite B by t(L)⁻¹ B, with ``rightside`` by B t(L)⁻¹."""

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        """Overwrite C by t(A) t(B)."""

    def transpose(self, A: Blocks, C: Blocks) -> None:
        """Overwrite C by Aᵀ."""

    def sum_over_grid(self, values: Tensor) -> None:
        """Replace values by their sum over all processes, which is the same to the last bit on each."""

    def share_along_row(self, values: Tensor, column: int) -> None:
        """Copy contiguous values from the process in ``column`` of this row of the grid.

        Only the processes of one row call it.
        """

    def share_along_column(self, values: Tensor, row: int) -> None:
        """Copy contiguous values from the process in ``row`` of this column of the grid."""

    def sum_over_column(self, values: Tensor) -> None:
        """Replace contiguous values by their sum over the processes of this column of the grid."""

    def close(self) -> None:
        """Free what the engine holds. Nothing else may be called afterwards."""
