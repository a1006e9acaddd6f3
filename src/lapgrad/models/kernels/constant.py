"""Constant functions, and white noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad._torch.layout import broadcast_shapes
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.models._parameters import Value, positive
from lapgrad.models.kernels._blocks import Tree, expand_scalar
from lapgrad.models.kernels.base import Kernel


class Constant(Kernel):
    """k(x, z) = variance: constant functions. As a factor it scales another kernel.

    Args:
        variance: Positive. None: from the data.
        active_dims: Has no effect here; all kernels have this argument.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Constant
        >>> Constant(3.0)(torch.zeros(2), torch.zeros(1)).tolist()
        [[3.0], [3.0]]
    """

    pure = True
    formula = "Constant"
    variance = positive(default=1.0)

    def __init__(
        self,
        variance: Value | None = None,
        *,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        self.variance = variance

    def scalars(self) -> Tree:
        """Return the variance."""
        return self.variance

    def _fill_formula(self, name: str, scalars: Tree, F: Tree) -> Formula | None:
        return Formula(name, (scalars,), ())

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Return the variance everywhere: one number in memory."""
        columns = F if G is None else G
        batch = broadcast_shapes(F.shape[:-2], columns.shape[:-2])
        variance: Tensor = scalars
        return variance.expand(*batch, F.shape[-2], columns.shape[-2])

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the variance, n times."""
        return expand_scalar(scalars, F)


class White(Kernel):
    """k(x, z) = variance where x and z are the same observation, else 0: independent noise.

    Two observations at the same place are not the same: ``kernel(X, Z)`` is 0 even if Z equals X, and
    ``kernel(X)`` is a diagonal matrix.

    Args:
        variance: Positive. None: from the data.
        active_dims: Has no effect here; all kernels have this argument.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import White
        >>> White(2.0)(torch.zeros(2)).tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """

    pure = True
    formula = "White"
    variance = positive(default=1.0)

    def __init__(
        self,
        variance: Value | None = None,
        *,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        self.variance = variance

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start at a tenth of the variance, as the noise of a model does."""
        super().start(X, y, 0.1 * variance)

    def scalars(self) -> Tree:
        """Return the variance."""
        return self.variance

    def _fill_formula(self, name: str, scalars: Tree, F: Tree) -> Formula | None:
        return Formula(name, (scalars,), ())

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · I, or 0."""
        if G is None:
            return torch.diag_embed(self.diagonal(scalars, F))
        batch = broadcast_shapes(F.shape[:-2], G.shape[:-2])
        zero: Tensor = 0.0 * scalars
        return zero.expand(*batch, F.shape[-2], G.shape[-2])

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the variance, n times."""
        return expand_scalar(scalars, F)
