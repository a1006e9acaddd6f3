"""Standardised data: shift and scale of columns, with guards for those that do not vary."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad.models import _checks


class StandardisedRegression:
    """What models of inputs and targets make of them before they look at them, with ``normalise``.

    Attributes:
        X, y: (n, d) and (n, k), the data.
        x_shift, x_scale, y_shift, y_scale: Of their columns.
        normalise: Whether they are used.
    """

    X: Tensor
    y: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    normalise: bool

    def _scale_inputs(self, X: Tensor) -> Tensor:
        return (X - self.x_shift) / self.x_scale if self.normalise else X

    def _scale_targets(self, y: Tensor) -> Tensor:
        return (y - self.y_shift) / self.y_scale if self.normalise else y

    def _check_new_inputs(self, function: str, X_new: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{function}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X=self.X, X_new=X_new)
        return X_new


def compute_shift_and_scale(X: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of X (n, d), each (d,); 0 and 1 if not ``wanted``.

    A column that does not vary beyond rounding has scale 1: it becomes 0, and stays in the data.
    """
    if not wanted:
        return X.new_zeros(X.shape[1]), X.new_ones(X.shape[1])
    shift, scale = X.mean(0), compute_spread(X)
    return shift, scale


def compute_spread(X: Tensor) -> Tensor:
    """The standard deviation of each column of X (n, d), 1 where it is 0 up to rounding."""
    deviation = X.std(0, correction=0)
    rounding = 10.0 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    return torch.where(deviation > rounding, deviation, torch.ones_like(deviation))
