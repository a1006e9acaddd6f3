"""Standardised data: shift and scale of columns, with guards for those that do not vary."""

from __future__ import annotations

import torch
from torch import Tensor


def shift_and_scale(X: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of X (n, d), each (d,); 0 and 1 if not ``wanted``.

    A column that does not vary beyond rounding has scale 1: it becomes 0, and stays in the data.
    """
    if not wanted:
        return X.new_zeros(X.shape[1]), X.new_ones(X.shape[1])
    shift, scale = X.mean(0), spread(X)
    return shift, scale


def spread(X: Tensor) -> Tensor:
    """The standard deviation of each column of X (n, d), 1 where it is 0 up to rounding."""
    deviation = X.std(0, correction=0)
    rounding = 10.0 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    return torch.where(deviation > rounding, deviation, torch.ones_like(deviation))
