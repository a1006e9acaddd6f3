"""Stationary kernels: functions of the distance of two points, in units of the lengthscales.

    S = |(x - z) / l|²,  r = √S

with one lengthscale l for all dimensions, or one per dimension (automatic relevance determination, ARD).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.fused._covariance import compute_covariance, is_served
from lapgrad.models._parameters import Value, positive
from lapgrad.models.kernels import _gaussian
from lapgrad.models.kernels._blocks import Tree, expand_scalar
from lapgrad.models.kernels._distances import compute_squared_distances, take_root
from lapgrad.models.kernels._profiles import apply_scaled_profile
from lapgrad.models.kernels._start import compute_lengthscale, expand_to_dimensions
from lapgrad.models.kernels._symmetry import mirror_lower_triangle
from lapgrad.models.kernels.base import Kernel


class Stationary(Kernel, abc.ABC):
    """k(x, z) = variance · f(|(x - z) / lengthscale|²) with f(0) = 1.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.
    """

    pure = True
    lengthscale = positive(default=1.0)
    variance = positive(default=1.0)

    def __init__(
        self,
        lengthscale: Value | None = None,
        variance: Value | None = None,
        *,
        ard: bool = False,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        self.lengthscale = lengthscale
        self.variance = variance
        self.ard = ard or self.get_parameter("raw_lengthscale").dim() > 0
        shapes = [tuple(self.get_parameter(f"raw_{name}").shape) for name in ("lengthscale", "variance")]
        if len(shapes[0]) > 1 or shapes[1]:
            raise _exceptions.ShapeError(
                f"{type(self).__name__}: lengthscale must be a scalar or of shape (d,), variance a scalar, "
                f"got shapes {shapes[0]} and {shapes[1]}."
            )

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start lengthscales at the typical distance of two points, or √d times that of each coordinate."""
        super().start(X, y, variance)
        is_given = self.is_given("lengthscale")
        if self.ard:
            expand_to_dimensions(self, "lengthscale", X.shape[-1])
        if not is_given:
            self.lengthscale = compute_lengthscale(X, self.get_parameter("raw_lengthscale").dim() > 0)
        _check_count(self, self.lengthscale, X.shape[-1])

    def embed(self, X: Tensor) -> Tensor:
        """Return the points in units of the lengthscales."""
        lengthscale = self.lengthscale
        _check_count(self, lengthscale, X.shape[-1])
        return X / lengthscale.to(X)

    def shape_parameters(self) -> tuple[Tensor, ...]:
        """Further arguments of ``profile``, each a scalar. Default: none."""
        return ()

    def scalars(self) -> Tree:
        """Return the variance, and the parameters of the profile."""
        return (self.variance, *self.shape_parameters())

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · f(S)."""
        K = self._compute_compiled(scalars, F, G)
        variance, *shape = scalars
        return self._compute_composite(variance, F, G, *shape) if K is None else K

    def _compute_compiled(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor | None:
        """Return the matrix by one pass of the compiled core; None: it has no kernel for it."""
        if not self.keeps_nothing(scalars, F, G):
            return None
        return compute_covariance(str(self.formula), scalars[0], F, G, self._compute_composite)

    def keeps_nothing(self, scalars: Tree, F: Tree, G: Tree | None) -> bool:
        """Whether the compiled core has a kernel for the matrix, and for its gradient."""
        if torch.compiler.is_compiling():
            return False
        variance, *shape = scalars
        formula = vars(type(self)).get("formula")  # that of a parent class is not the one of a subclass
        return formula is not None and not shape and is_served(formula, variance, F, G)

    def _compute_composite(self, variance: Tensor, F: Tensor, G: Tensor | None, *shape: Tensor) -> Tensor:
        """Return the matrix in differentiable operators."""
        S = compute_squared_distances(F, G)
        return variance * self.profile(S, *shape) if shape else apply_scaled_profile(self, variance, S)

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the variance, n times."""
        return expand_scalar(scalars[0], F)

    @abc.abstractmethod
    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """f(S), elementwise."""

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return f(S) and f'(S) by a formula that saves time; None (the default): autograd computes f'."""
        return None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel with as many lengthscales as were saved."""
        return cls(torch.ones_like(tensors["raw_lengthscale"]), active_dims=config["active_dims"])


class RBF(Stationary):
    """The squared exponential: k(x, z) = variance · exp(-S / 2). Smooth functions.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import RBF
        >>> RBF(lengthscale=2.0)(torch.tensor([0.0, 2.0])).detach()
        tensor([[1.0000, 0.6065],
                [0.6065, 1.0000]])
    """

    formula = "Rbf"

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """variance · exp(-S / 2), by one product and one exponential where that is precise enough."""
        K = self._compute_compiled(scalars, F, G)
        return self._evaluate_gaussian(scalars, F, G, are_near=False) if K is None else K

    def compare_points(self, X: Tensor, Z: Tensor) -> dict[Kernel, Tensor]:
        """Return whether the points are near enough for the formula with one product."""
        return {self: _gaussian.are_points_near(self.features(X), self.features(Z))}

    def evaluate_matrix(self, scalars: Tree, F: Tree, G: Tree | None, near: Set[Kernel]) -> Tensor:
        """Return ``matrix(scalars, F, G)``; points are not checked if ``near`` contains this kernel."""
        if self not in near or type(self).matrix is not RBF.matrix:  # a subclass with a formula of its own
            return self.matrix(scalars, F, G)
        K = self._compute_compiled(scalars, F, G)
        return self._evaluate_gaussian(scalars, F, G, are_near=True) if K is None else K

    def _evaluate_gaussian(self, scalars: Tree, F: Tree, G: Tree | None, *, are_near: bool) -> Tensor:
        (variance,) = scalars
        columns = F if G is None else G
        if not _gaussian.is_precise(F, columns, variance, are_near=are_near):
            return super().matrix(scalars, F, G)
        K = _gaussian.compute_gaussian(F, columns, variance)
        return mirror_lower_triangle(K, variance) if G is None else K

    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """exp(-S / 2)."""
        return torch.exp(-0.5 * S)


class Matern12(Stationary):
    """Exponential kernel, Matérn 1/2: k(x, z) = variance · exp(-r). Continuous, nowhere smooth functions.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Matern12
        >>> Matern12()(torch.tensor([0.0]), torch.tensor([1.0])).item()
        0.3678...
    """

    formula = "Matern12"

    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """exp(-r)."""
        return torch.exp(-take_root(S))

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """f' = -exp(-r) / 2r, and 0 at 0."""
        r = S.sqrt()
        f = torch.exp(-r)
        return f, torch.where(S > 0.0, (f / r).mul_(-0.5), 0.0)


class Matern32(Stationary):
    """Matérn 3/2: k(x, z) = variance · (1 + √3 r) exp(-√3 r). Functions with one derivative.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Matern32
        >>> Matern32()(torch.tensor([0.0]), torch.tensor([1.0])).item()
        0.4833...
    """

    formula = "Matern32"

    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """(1 + √3 r) exp(-√3 r)."""
        t = take_root(3.0 * S)
        return (1.0 + t) * torch.exp(-t)

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """f' = -3/2 exp(-√3 r)."""
        t = (3.0 * S).sqrt_()
        e = torch.exp(-t)
        return t.add_(1.0).mul_(e), e.mul_(-1.5)


class Matern52(Stationary):
    """Matérn 5/2: k(x, z) = variance · (1 + √5 r + 5/3 S) exp(-√5 r). Functions with two derivatives.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Matern52
        >>> Matern52()(torch.tensor([0.0]), torch.tensor([1.0])).item()
        0.5239...
    """

    formula = "Matern52"

    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """(1 + √5 r + 5/3 S) exp(-√5 r)."""
        t = take_root(5.0 * S)
        return (1.0 + t + (5.0 / 3.0) * S) * torch.exp(-t)

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """f' = -5/6 (1 + √5 r) exp(-√5 r)."""
        t = (5.0 * S).sqrt_()
        e = torch.exp(-t)
        t.add_(1.0)
        f = torch.add(t, S, alpha=5.0 / 3.0).mul_(e)
        return f, e.mul_(t).mul_(-5.0 / 6.0)


class RationalQuadratic(Stationary):
    """k(x, z) = variance · (1 + S / (2 mixture))^-mixture: squared exponentials of many lengthscales.

    Args:
        lengthscale: Positive; a scalar, or one per dimension (d,). None: from the data.
        variance: Positive; k(x, x). None: from the data.
        mixture: Positive; how narrow the distribution of the lengthscales is. Infinity would be ``RBF``.
        ard: Learn one lengthscale per dimension (automatic relevance determination); the model adds them.
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import RationalQuadratic
        >>> RationalQuadratic(mixture=1.0)(torch.tensor([0.0]), torch.tensor([1.0])).item()
        0.6666...
    """

    formula = "RationalQuadratic"

    mixture = positive(default=1.0)

    def __init__(
        self,
        lengthscale: Value | None = None,
        variance: Value | None = None,
        mixture: Value | None = None,
        *,
        ard: bool = False,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(lengthscale, variance, ard=ard, active_dims=active_dims, name=name)
        self.mixture = mixture

    def shape_parameters(self) -> tuple[Tensor, ...]:
        """Return the mixture."""
        return (self.mixture,)

    def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
        """exp(-mixture log(1 + S / (2 mixture)))."""
        (mixture,) = shape
        return torch.exp(-mixture * torch.log1p(S / (2.0 * mixture)))


def _check_count(kernel: Kernel, lengthscale: Tensor, d: int) -> None:
    """Raise a ShapeError unless there is one lengthscale, or one for each of d dimensions."""
    if lengthscale.dim() == 1 and len(lengthscale) != d:
        raise _exceptions.ShapeError(
            f"{type(kernel).__name__}: {len(lengthscale)} lengthscales for points of {d} dimensions."
        )
