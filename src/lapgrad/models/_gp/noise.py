"""The noise of exact Gaussian process regression: learned, or known for each observation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad.models import _checks, _scaling
from lapgrad.models._parameters import ParametrisedModule, Value, above


class WithNoise(ParametrisedModule):
    """A mixin for models with data X (n, d) and scaled targets.

    Attributes:
        noise_floor: Lower limit of the variance of the noise while it is learned.
        noise_var: Variance of the noise, in units of the scaled targets, if it is learned.
        point_noise: (n,), the variances of the noise of all observations, in the units of y; None: learned.
    """

    noise_floor: Tensor
    noise_var = above("noise_floor")
    point_noise: Tensor | None
    X: Tensor
    y_scale: Tensor

    def set_noise(self, noise_var: Value | None, noise_floor: float | None, variance: Tensor) -> None:
        """Set the noise: learned, or known for each observation; ``variance`` is that of scaled targets."""
        who = type(self).__name__
        _checks.check_noise_limits(who, noise_var, noise_floor)
        noise = torch.as_tensor(
            _scaling.choose_noise(variance, noise_floor) if noise_var is None else noise_var,
            dtype=torch.float64,
        ).detach()
        if noise.dim():
            noise = _checks.check_noise(who, noise, len(self.X))
        smallest = torch.minimum(
            math.sqrt(torch.finfo(self.X.dtype).eps) * variance, 0.01 * noise.abs().min().to(variance)
        )
        self.register_buffer("noise_floor", smallest if noise_floor is None else torch.tensor(noise_floor))
        self.register_buffer("point_noise", noise.to(self.X) if noise.dim() else None)
        if not noise.dim():
            self.noise_var = noise

    def get_noise(self) -> Tensor:
        """Return the variance of the noise in scaled units: of all observations, or of each (n,)."""
        return self.noise_var if self.point_noise is None else self.point_noise / self.y_scale.square()

    def get_noise_of_new(self, who: str, noise: bool | Tensor, count: int) -> Tensor:
        """Return the variance of the noise of new observations, (count,), in the units of y."""
        if isinstance(noise, Tensor):
            return _checks.check_noise(who, noise.detach(), count, "noise").to(self.X)
        if self.point_noise is not None:
            return self.point_noise.mean().expand(count)
        return (self.noise_var * self.y_scale.square()).detach().expand(count)
