"""Kernels of the scalar product of two points: linear functions, and polynomials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._parameters import Value, positive
from lapgrad.models._products import multiply
from lapgrad.models.kernels._blocks import Tree, expand_scalar
from lapgrad.models.kernels._start import divide, expand_to_dimensions
from lapgrad.models.kernels._symmetry import mirror_lower_triangle
from lapgrad.models.kernels.base import Kernel


class Linear(Kernel):
    """k(x, z) = Σ_i variance_i x_i z_i: linear functions through the origin.

    With ``Constant`` added: linear functions. The covariance of Bayesian linear regression.

    Args:
        variance: Positive; a scalar, or one per dimension (d,): the prior variance of the slopes. None: from
            the data.
        ard: Learn one variance per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Linear
        >>> Linear()(torch.tensor([3.0]), torch.tensor([4.0])).item()
        12.0
    """

    pure = True
    formula = "Linear"
    variance = positive(default=1.0)

    def __init__(
        self,
        variance: Value | None = None,
        *,
        ard: bool = False,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        self.variance = variance
        self.ard = ard or self.get_parameter("raw_variance").dim() > 0
        if self.get_parameter("raw_variance").dim() > 1:
            raise _exceptions.ShapeError("Linear: variance must be a scalar or of shape (d,).")

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start slopes so that k(x, x) has the variance on average."""
        is_given = self.is_given("variance")
        if self.ard:
            expand_to_dimensions(self, "variance", X.shape[-1])
        if not is_given:
            squares = X.square().mean(0)
            share = variance / squares.where(squares > 0, 1.0) / max(1, X.shape[-1])
            self.variance = (
                share if self.get_parameter("raw_variance").dim() else divide(variance, squares.sum())
            )

    def embed(self, X: Tensor) -> Tensor:
        """x_i √variance_i."""
        variance = self.variance
        if variance.dim() == 1 and variance.shape[0] != X.shape[-1]:
            raise _exceptions.ShapeError(
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
        offset: Positive; the weight of terms of lower degree. None: from the data.
        variance: Positive. None: from the data.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Polynomial
        >>> Polynomial(degree=2, offset=1.0)(torch.tensor([1.0]), torch.tensor([2.0])).item()
        9.0
    """

    pure = True
    offset = positive(default=1.0)
    variance = positive(default=1.0)

    def __init__(
        self,
        degree: int = 2,
        offset: Value | None = None,
        variance: Value | None = None,
        *,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
            raise _exceptions.OptionError(f"Polynomial: degree must be a positive integer, got {degree!r}.")
        self.degree = degree
        self.offset = offset
        self.variance = variance

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start the offset at the mean of |x|², and k(x, x) at the variance on average."""
        squares = X.square().sum(-1)
        if not self.is_given("offset"):
            self.offset = divide(squares.mean(), torch.ones_like(squares.mean()))
        super().start(X, y, divide(variance, ((squares + self.offset.to(squares)) ** self.degree).mean()))

    def scalars(self) -> Tree:
        """Variance and offset."""
        return self.variance, self.offset

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · (F Gᵀ + offset)^degree."""
        variance, offset = scalars
        return variance * (_compute_products(F, G) + offset) ** self.degree

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """variance · (|f|² + offset)^degree."""
        variance, offset = (expand_scalar(scalar, F) for scalar in scalars)
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
