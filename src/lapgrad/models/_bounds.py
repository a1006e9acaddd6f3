"""Bounds of a hyper-parameter, and the map by which a value inside them is stored."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

_MARGIN, _NEAR = 0.01, 1e-6


class Bounds(NamedTuple):
    """An open interval of values, and a map from it to all real numbers, by which values are stored.

    Attributes:
        low: May be minus infinity.
        high: May be infinity.
        is_logarithmic: Whether steps between two positive bounds are relative changes.
    """

    low: float
    high: float
    is_logarithmic: bool

    def decode(self, raw: Tensor) -> Tensor:
        """Return the value that is stored as ``raw``."""
        if math.isinf(self.high):
            return self.low + torch.exp(raw)
        if math.isinf(self.low):
            return self.high - torch.exp(raw)
        if self.is_logarithmic and self.low > 0:
            low, high = math.log(self.low), math.log(self.high)
            value = torch.exp(low + (high - low) * torch.sigmoid(raw))
        else:
            value = self.low + (self.high - self.low) * torch.sigmoid(raw)
        return value.clamp(self.low, self.high)  # outside by rounding alone

    def encode(self, value: Tensor) -> Tensor:
        """Return what is stored for a value inside."""
        if math.isinf(self.high):
            return torch.log(value - self.low)
        if math.isinf(self.low):
            return torch.log(self.high - value)
        if self.is_logarithmic and self.low > 0:
            low, high = math.log(self.low), math.log(self.high)
            return torch.logit((value.log() - low) / (high - low))
        return torch.logit((value - self.low) / (self.high - self.low))

    def contains(self, value: Any) -> Any:
        """Return whether a number, or each number of a tensor, lies inside."""
        return (value > self.low) & (value < self.high)

    def contains_clearly(self, value: Tensor) -> Tensor:
        """Return whether each number lies inside, and not so near to an end that gradients vanish."""
        low, high = (_NEAR * abs(end) if math.isfinite(end) else 0.0 for end in (self.low, self.high))
        return (value > self.low + low) & (value < self.high - high)

    def move_inside(self, value: Tensor) -> Tensor:
        """Return the nearest value that is a little inside, so that gradients do not vanish there."""
        if math.isinf(self.high) or math.isinf(self.low):
            end = self.low if math.isinf(self.high) else self.high
            margin = _MARGIN * max(1.0, abs(end))
            return value.clamp_min(end + margin) if math.isinf(self.high) else value.clamp_max(end - margin)
        ends = [self.decode(torch.tensor(end, dtype=value.dtype).logit()) for end in (_MARGIN, 1.0 - _MARGIN)]
        return value.clamp(float(ends[0]), float(ends[1]))

    def describe(self) -> str:
        """Return the interval in words."""
        return f"between {self.low:g} and {self.high:g}"
