"""Stationary kernels: functions of the distance of two points, in units of the lengthscales.

    S = |(x - z) / l|²,  r = √S

with one lengthscale l for all dimensions, or one per dimension (automatic relevance determination, ARD).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models._parameters import Value, positive
from lapgrad.models.kernels import _gaussian
from lapgrad.models.kernels._blocks import Tree
from lapgrad.models.kernels._distances import squared_distances
from lapgrad.models.kernels.base import Kernel


class Stationary(Kernel, abc.ABC):
    """k(x, z) = variance · f(|(x - z) / lengthscale|²) with f(0) = 1.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,).
        variance: Positive; k(x, x).
        active_dims: The columns of the points that the kernel sees; None: all of them.
    """

    pure = True
    lengthscale = positive()
    variance = positive()

    def __init__(
        self, lengthscale: Value = 1.0, variance: Value = 1.0, *, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims=active_dims)
        self.lengthscale = lengthscale
        self.variance = variance
        shapes = [tuple(self.get_parameter(f"raw_{name}").shape) for name in ("lengthscale", "variance")]
        if len(shapes[0]) > 1 or shapes[1]:
            raise _errors.ShapeError(
                f"{type(self).__name__}: lengthscale must be a scalar or of shape (d,), variance a scalar, "
                f"got shapes {shapes[0]} and {shapes[1]}."
            )

    def embed(self, X: Tensor) -> Tensor:
        """The points in units of the lengthscales."""
        lengthscale = self.lengthscale
        if lengthscale.dim() and lengthscale.shape[0] != X.shape[-1]:
            raise _errors.ShapeError(
                f"{type(self).__name__}: {lengthscale.shape[0]} lengthscales for points of {X.shape[-1]} "
                f"dimensions."
            )
        return X / lengthscale.to(X)

    def scalars(self) -> Tree:
        """The variance."""
        return self.variance

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · f(S)."""
        return scalars * self.profile(squared_distances(F, G))

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """The variance, n times."""
        variance: Tensor = scalars
        return variance.expand(F.shape[:-1])

    @abc.abstractmethod
    def profile(self, S: Tensor) -> Tensor:
        """f(S), elementwise."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """With as many lengthscales as were saved."""
        return cls(torch.ones_like(tensors["raw_lengthscale"]), active_dims=config["active_dims"])


class RBF(Stationary):
    """The squared exponential: k(x, z) = variance · exp(-S / 2). Smooth functions.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,).
        variance: Positive; k(x, x).
        active_dims: The columns of the points that the kernel sees; None: all of them.

    Example:
        >>> from lapgrad.models.kernels import RBF
        >>> RBF(lengthscale=2.0)(torch.tensor([0.0, 2.0]))
        tensor([[1.0000, 0.6065],
                [0.6065, 1.0000]], grad_fn=<MulBackward0>)
    """

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Between two sets of points by one product where that is precise enough."""
        if G is not None and _gaussian.suits(F, G, scalars):
            return _gaussian.gaussian(F, G, scalars)
        return super().matrix(scalars, F, G)

    def profile(self, S: Tensor) -> Tensor:
        """exp(-S / 2)."""
        return torch.exp(-0.5 * S)
