"""The engine of a single process, which holds the whole matrix: lapgrad's own operators."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.ops.potrf import potrf
from lapgrad.ops.potri import potri
from lapgrad.ops.trsm import trsm


class LocalEngine:
    """An engine of one process: a program for many processes then runs without an MPI and on any device.

    Blocks are stored by columns. Their transpose is stored by rows, which operators can overwrite in place.
    In the transpose, a lower triangle is the upper one, and L is R = Lᵀ.
    """

    name = "local"
    rank, size = 0, 1
    shape, position = (1, 1), (0, 0)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def potrf(self, A: Blocks) -> int:
        """Overwrite A by its Cholesky factor."""
        if not A.local.numel():
            return 0
        try:
            potrf(A.local.mT, lower=False, overwrite=True)
        except _exceptions.NotPositiveDefiniteError as error:
            return error.minor
        except _exceptions.NonFiniteError as error:
            # Engines do not report numbers that are not finite: the caller finds them on the diagonal.
            A.local[error.pivot - 1, error.pivot - 1] = torch.nan
        return 0

    def potri(self, L: Blocks) -> None:
        """Overwrite L by the inverse of L Lᵀ."""
        if L.local.numel():
            potri(L.local.mT, lower=False, overwrite=True)

    def potrs(self, L: Blocks, B: Blocks) -> None:
        """Overwrite B by (L Lᵀ)⁻¹ B."""
        self.trsm(L, B, transpose=False, rightside=False)
        self.trsm(L, B, transpose=True, rightside=False)

    def trsm(self, L: Blocks, B: Blocks, *, transpose: bool, rightside: bool) -> None:
        """Overwrite B by t(L)⁻¹ B or B t(L)⁻¹. In transposes: (t(L)⁻¹ B)ᵀ = Bᵀ t(R)⁻¹ with R = Lᵀ."""
        if B.local.numel():
            trsm(
                L.local.mT,
                B.local.mT,
                lower=False,
                transpose=transpose,
                rightside=not rightside,
                overwrite=True,
            )

    def gemm(self, A: Blocks, B: Blocks, C: Blocks, *, transpose_a: bool, transpose_b: bool) -> None:
        """Overwrite C by t(A) t(B)."""
        left, right = A.local.mT if transpose_a else A.local, B.local.mT if transpose_b else B.local
        C.local.copy_(left @ right)

    def transpose(self, A: Blocks, C: Blocks) -> None:
        """Overwrite C by Aᵀ."""
        C.local.copy_(A.local.mT)

    def sum_over_grid(self, values: Tensor) -> None:
        """Leave the values as they are: there is one process."""

    def share_along_row(self, values: Tensor, column: int) -> None:
        """Leave the values as they are."""

    def share_along_column(self, values: Tensor, row: int) -> None:
        """Leave the values as they are."""

    def sum_over_column(self, values: Tensor) -> None:
        """Leave the values as they are."""

    def close(self) -> None:
        """Do nothing."""
