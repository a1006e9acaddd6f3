"""Hyper-parameters that are variances: positive and learned, or exactly 0 and not learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapgrad.models._parameters import Hyperparameter, Value

#: The logarithm that stands for 0: its exponential underflows to exactly 0 in every dtype, and it is finite.
_RAW_ZERO = -1e4


class Variance(Hyperparameter):
    """A descriptor of a hyper-parameter that is positive and learned, or exactly 0 and then not learned."""

    def __init__(self) -> None:
        super().__init__(
            torch.exp,
            lambda value: value.log().clamp_min(_RAW_ZERO),
            lambda value: value >= 0,
            "non-negative and finite",
        )

    def __set__(self, module: nn.Module, value: Value | None) -> None:
        known: nn.Parameter | None = getattr(module, self.raw_name, None)
        was_zero = known is not None and _is_raw_zero(known)
        super().__set__(module, value)
        raw = module.get_parameter(self.raw_name)
        if _is_raw_zero(raw):
            raw.requires_grad_(False)
        elif was_zero:
            raw.requires_grad_(True)


def _is_raw_zero(raw: Tensor) -> bool:
    return raw.item() <= _RAW_ZERO if raw.numel() == 1 else bool((raw <= _RAW_ZERO).any())


def variance() -> Any:
    """Return a hyper-parameter that is positive and stored as its logarithm; or 0, and then not learned.

    Example:
        >>> from lapgrad.models._parameters import ParametrisedModule
        >>> class Walk(ParametrisedModule):
        ...     variance = variance()
        >>> walk = Walk()
        >>> walk.variance = 0.0
        >>> walk.variance.item(), walk.raw_variance.requires_grad
        (0.0, False)
    """
    return Variance()
