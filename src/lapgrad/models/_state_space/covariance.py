"""Covariance matrices that stay positive definite while they are learned."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.models._parameters import ParametrisedModule, Value, positive, unbounded
from lapgrad.ops.maketrian import maketrian
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk


class Covariance(ParametrisedModule):
    """A learned covariance L Lᵀ, with L lower triangular with a positive diagonal.

    Args:
        value: (n, n), positive definite, or (n,): a diagonal.
        diagonal: Keep it diagonal.

    Attributes:
        deviations: (n,), the diagonal of L.
        below: (n (n - 1) / 2,), the entries of L below the diagonal, row by row; not with ``diagonal``.
    """

    deviations = positive()
    below = unbounded()

    def __init__(self, value: Value, *, diagonal: bool = False) -> None:
        super().__init__()
        tensor = torch.as_tensor(value, dtype=torch.float64).detach()
        matrix = torch.diag(tensor) if tensor.dim() == 1 else tensor
        if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
            raise _errors.ShapeError(
                f"Covariance: value must have shape (n, n) or (n,), got {tuple(tensor.shape)}."
            )
        L = potrf(matrix)
        self.diagonal = diagonal
        self.deviations = L.diagonal()
        if not diagonal:
            rows, columns = torch.tril_indices(L.shape[0], L.shape[1], -1)
            self.below = L[rows, columns]

    def factor(self) -> Tensor:
        """Return L, (n, n)."""
        L = torch.diag_embed(self.deviations)
        if self.diagonal or len(self.deviations) < 2:
            return L
        return L + maketrian(self.below, offset=-1)

    def matrix(self) -> Tensor:
        """Return L Lᵀ, (n, n)."""
        if self.diagonal or len(self.deviations) < 2:
            return torch.diag_embed(self.deviations.square())
        return syrk(self.factor())
