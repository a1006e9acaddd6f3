"""Kernels of the scalar product of two points: linear functions, and polynomials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models._parameters import Value, positive
from lapgrad.models._products import multiply
from lapgrad.models.kernels._blocks import Tree
from lapgrad.models.kernels._symmetry import mirror_lower_triangle
from lapgrad.models.kernels.base import Kernel


class Linear(Kernel):
    """k(x, z) = Σ_i variance_i x_i z_i: linear functions through the origin.

    With ``Constant`` added: linear functions. The covariance of Bayesian linear regression.

    Args:
        variance: Positive; a scalar, or one per dimension (d,): the prior variance of the slopes.
        active_dims: The columns of the points that the kernel uses; None: all of them.

    Example:
        >>> from lapgrad.models.kernels import Linear
        >>> Linear()(torch.tensor([3.0]), torch.tensor([4.0])).item()
        12.0
    """

    pure = True
    variance = positive()

    def __init__(self, variance: Value = 1.0, *, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims=active_dims)
        self.variance = variance
        if self.get_parameter("raw_variance").dim() > 1:
            raise _errors.ShapeError("Linear: variance must be a scalar or of shape (d,).")

    def embed(self, X: Tensor) -> Tensor:
        """x_i √variance_i."""
        variance = self.variance
        if variance.dim() and variance.shape[0] != X.shape[-1]:
            raise _errors.ShapeError(
                f"Linear: {variance.shape[0]} variances for points of {X.shape[-1]} dimensions."
            )
        return X * variance.sqrt().to(X)

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """F Gᵀ."""
        return _compute_products(F, G)

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """|f|²."""
        features: Tensor = F
        return features.square().sum(-1)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel with as many variances as were saved."""
        return cls(torch.ones_like(tensors["raw_variance"]), active_dims=config["active_dims"])


class Polynomial(Kernel):
    """k(x, z) = variance · (xᵀz + offset)^degree: polynomials of all variables up to that degree.

    Args:
        degree: 1, 2, ...
        offset: Positive; the weight of terms of lower degree.
        variance: Positive.
        active_dims: The columns of the points that the kernel uses; None: all of them.

    Example:
        >>> from lapgrad.models.kernels import Polynomial
        >>> Polynomial(degree=2, offset=1.0)(torch.tensor([1.0]), torch.tensor([2.0])).item()
        9.0
    """

    pure = True
    offset = positive()
    variance = positive()

    def __init__(
        self,
        degree: int = 2,
        offset: Value = 1.0,
        variance: Value = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims)
        if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
            raise _errors.OptionError(f"Polynomial: degree must be a positive integer, got {degree!r}.")
        self.degree = degree
        self.offset = offset
        self.variance = variance

    def scalars(self) -> Tree:
        """Variance and offset."""
        return self.variance, self.offset

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · (F Gᵀ + offset)^degree."""
        variance, offset = scalars
        return variance * (_compute_products(F, G) + offset) ** self.degree

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """variance · (|f|² + offset)^degree."""
        variance, offset = scalars
        result: Tensor = variance * (F.square().sum(-1) + offset) ** self.degree
        return result

    def config(self) -> dict[str, Any]:
        """Return options and the degree."""
        return {**super().config(), "degree": self.degree}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel of the degree that was saved."""
        return cls(config["degree"], active_dims=config["active_dims"])

    def extra_repr(self) -> str:
        """Degree and hyper-parameters."""
        return f"degree={self.degree}, {super().extra_repr()}"


def _compute_products(F: Tensor, G: Tensor | None) -> Tensor:
    """Return F Gᵀ; for G None it is made exactly symmetric, which a product of matrices need not be."""
    return mirror_lower_triangle(multiply(F, F.mT)) if G is None else multiply(F, G.mT)
