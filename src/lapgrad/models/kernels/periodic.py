"""Periodic functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._parameters import Value, positive
from lapgrad.models.kernels._start import find_period
from lapgrad.models.kernels.base import Kernel
from lapgrad.models.kernels.stationary import RBF


class Periodic(RBF):
    """k(x, z) = variance · exp(-2 Σ_i sin²(π (x_i - z_i) / period_i) / lengthscale_i²).

    It is the squared exponential of points on circles, one circle of radius 1 / lengthscale per dimension.
    Multiplied by an ``RBF`` it lets the shape of the period drift.

    Args:
        period: Positive; a scalar, or one per dimension (d,). None: the strongest one in the data.
        lengthscale: Positive; a scalar, or one per dimension (d,). Relative to the period. None: √d.
        variance: Positive; k(x, x). None: from the data.
        ard: Learn one lengthscale per dimension; the model adds them. (Periods are as many as are passed.)
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Periodic
        >>> Periodic(period=0.5)(torch.tensor([0.0]), torch.tensor([1.0])).item()
        1.0
    """

    formula = "Rbf"
    period = positive(default=1.0)

    def __init__(
        self,
        period: Value | None = None,
        lengthscale: Value | None = None,
        variance: Value | None = None,
        *,
        ard: bool = False,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(lengthscale, variance, ard=ard, active_dims=active_dims, name=name)
        self.period = period
        if self.get_parameter("raw_period").dim() > 1:
            raise _exceptions.ShapeError("Periodic: period must be a scalar or of shape (d,).")

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start the period at the strongest one of the data, and lengthscales at √d."""
        if not self.is_given("period"):
            self.period = find_period(X, y)
        if not self.is_given("lengthscale"):
            self.lengthscale = math.sqrt(max(1, X.shape[-1]))
        super().start(X, y, variance)

    def embed(self, X: Tensor) -> Tensor:
        """(cos, sin)(2π x / period) / lengthscale: 4 sin²(a) is the squared chord of the angle 2a.

        Whole periods are subtracted first, because sines of large angles lose digits.
        """
        period = self.period
        if period.dim() == 1 and period.shape[0] != X.shape[-1]:
            raise _exceptions.ShapeError(
                f"Periodic: {period.shape[0]} periods for points of {X.shape[-1]} dimensions."
            )
        turns = X / period.to(X)
        angle = 2.0 * math.pi * (turns - turns.detach().round())
        circles = [super(Periodic, self).embed(part) for part in (torch.cos(angle), torch.sin(angle))]
        return torch.cat(circles, -1)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel with as many lengthscales and periods as were saved."""
        period, lengthscale = (torch.ones_like(tensors[f"raw_{name}"]) for name in ("period", "lengthscale"))
        return cls(period, lengthscale, active_dims=config["active_dims"])
