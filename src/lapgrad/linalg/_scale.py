"""Units of data: powers of two that keep squares of observations within the range of their numbers."""

from __future__ import annotations

import torch
from torch import Tensor

#: Exponents of scales: reciprocals are finite.
_LARGEST_EXPONENT = {torch.float64: 1000.0, torch.float32: 120.0}


def find_unit(X: Tensor, least: float = 0.0) -> Tensor:
    """The power of two at or below the largest |entry| of X, or ``least`` if that is larger; (*batch, 1, 1).

    Moments of X / unit neither overflow nor vanish, and dividing is exact. It has no derivative: what is
    computed with it does not depend on it. 1 where all is zero; NaN stays NaN.
    """
    if X.shape[-2] == 0 or X.shape[-1] == 0:
        return X.new_ones((*X.shape[:-2], 1, 1))
    entries = X.detach()
    highest, lowest = entries.amax((-2, -1), keepdim=True), entries.amin((-2, -1), keepdim=True)
    largest = torch.maximum(highest, -lowest).clamp_min(least)
    limit = _LARGEST_EXPONENT[X.dtype]
    exponent = torch.where(largest == 0, 1.0, largest).log2().floor().clamp(-limit, limit)
    return torch.exp2(exponent)
