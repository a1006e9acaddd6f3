"""Where fits of state space models begin: scales of the data, and other starts to try at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lapgrad.models._parameters import Hyperparameter
from lapgrad.models._state_space.variances import Variance

Array = npt.NDArray[np.float64]

_RAISED = (0.3, 0.03, 0.003, 3e-4, 3e-5)
"""Parts of the largest variance that one which is nearly zero is set to."""

_NEGLIGIBLE = 1e-2
"""A variance below this part of the largest one counts as nearly zero."""

_LOWERED, _SHIFTED = 6.0, 1.0
"""By how much the logarithm of a variance is lowered, and the logit of another parameter shifted."""


_VANISHED = -20.0
"""Logarithm of the part of the largest variance that one which vanishes is set to."""


class SeriesFacts(NamedTuple):
    """What components choose their first hyper-parameters by.

    Attributes:
        values: (N, T, p), the series; NaN: missing.
        variance: Mean variance of the data.
        step_variance: Variance of what is new in an observation: of changes from step to step, and from
            season to season, per observation that they are made of.
    """

    values: Tensor
    variance: float
    step_variance: float

    def find_period(self) -> float:
        """Return the period of the strongest cycle, in steps, at least 3 and at most half the length."""
        series = self.values[..., 0].double()
        length = series.shape[1]
        filled = torch.nan_to_num(series - series.nanmean(1, keepdim=True))
        if length < 8:
            return 4.0
        # A taper keeps a trend from leaking into all frequencies.
        taper = torch.hann_window(length, periodic=False, dtype=filled.dtype, device=filled.device)
        power = torch.fft.rfft(filled * taper, 4 * length).abs().square().sum(0)
        first, last = math.ceil(4 * length / (length / 2)), math.floor(4 * length / 3)
        best = first + int(power[first : last + 1].argmax())
        return 4 * length / best


def collect_facts(values: Tensor, variance: float, periods: Sequence[float]) -> SeriesFacts:
    """Return the facts about series (N, T, p) whose seasons have these periods."""
    changed, count = values.double(), 1.0
    for lag in (1, *sorted({round(period) for period in periods})):
        if changed.shape[1] > lag + 2:
            changed, count = changed[:, lag:] - changed[:, :-lag], 2.0 * count
    size = float((changed.square().nanmean() if changed.numel() else changed.new_tensor(math.nan)) / count)
    is_usable = math.isfinite(size) and size > 1e-12 * variance
    return SeriesFacts(values, variance, min(size, variance) if is_usable else variance)


class LearnedNumber(NamedTuple):
    """One number that is learned.

    Attributes:
        is_variance: Whether it is a logarithm: of a variance, or of a standard deviation.
        power: exp(power · number) is the variance.
        can_shift: Whether other starts may shift it.
    """

    is_variance: bool
    power: float
    can_shift: bool


def describe_numbers(
    found: Sequence[tuple[Tensor, Hyperparameter, bool]], parameters: Sequence[Tensor]
) -> list[LearnedNumber] | None:
    """Return what each number of the learned parameters is; None: some are not hyper-parameters.

    Args:
        found: Raw tensors of all hyper-parameters, with their descriptors, and whether they are standard
            deviations.
        parameters: The learned tensors.
    """
    known = {id(raw): (descriptor, is_deviation) for raw, descriptor, is_deviation in found}
    numbers = []
    for parameter in parameters:
        if id(parameter) not in known:
            return None
        descriptor, is_deviation = known[id(parameter)]
        is_variance = is_deviation or isinstance(descriptor, Variance)
        is_bounded = descriptor.wanted.startswith("between")
        number = LearnedNumber(is_variance, 2.0 if is_deviation else 1.0, is_variance or is_bounded)
        numbers += [number] * parameter.numel()
    return numbers


def propose_start(
    numbers: Sequence[LearnedNumber],
    x: Array,
    value: float,
    gradient: Array,
    evaluate: Callable[[Array], float],
) -> Array | None:
    """Return the best of several points around a minimum that a descent from it would not have reached.

    The logarithm of a variance that has become nearly zero has no gradient left, and a fit would stay there
    for ever:
    such a variance is raised. Others are lowered, until they are nearly zero, and parameters in an interval
    are shifted. The point with the lowest loss is returned, also if it is above that of the minimum.

    Args:
        numbers: What the coordinates are.
        x: (k,), the minimum.
        value: The loss there.
        gradient: (k,), its gradient.
        evaluate: Returns the loss at a point.
    """
    logs = [number.power * float(x[i]) for i, number in enumerate(numbers) if number.is_variance]
    largest = max(logs, default=0.0)
    best, lowest = None, math.inf
    for i, number in enumerate(numbers):
        for change in _list_changes(number, float(x[i]), largest, float(gradient[i])):
            candidate = x.copy()
            candidate[i] += change
            found = evaluate(candidate)
            # Lowering what is of no importance leads nowhere new: its loss is that of the minimum.
            if found < lowest and abs(found - value) > 1e-6 * max(1.0, abs(value)):
                best, lowest = candidate, found
    return best


def _list_changes(number: LearnedNumber, at: float, largest: float, slope: float) -> list[float]:
    if not number.can_shift:
        return []
    if not number.is_variance:
        return [-_SHIFTED, _SHIFTED]
    size = number.power * at
    if size < largest + math.log(_NEGLIGIBLE):
        # By the sign of its gradient a variance of nearly zero should be larger, or is right to be zero.
        parts = _RAISED if slope < 0.0 else _RAISED[1:2]
        return [(largest + math.log(part) - size) / number.power for part in parts]
    return [-_LOWERED / number.power]


def shorten_way(numbers: Sequence[LearnedNumber], x: Array, gradient: Array) -> Array | None:
    """Return a point with small variances that vanish set to nearly zero; None: there are none."""
    sizes = np.array([number.power for number in numbers]) * x
    is_variance = np.array([number.is_variance for number in numbers])
    if not is_variance.any():
        return None
    below = sizes - sizes[is_variance].max()
    vanishing = (
        is_variance & (gradient > 1e-6) & (gradient < 0.5) & (below < -3.0) & (below > _VANISHED + 1.0)
    )
    if not vanishing.any():
        return None
    moved = x.copy()
    powers = np.array([number.power for number in numbers])
    moved[vanishing] += (_VANISHED - below[vanishing]) / powers[vanishing]
    return moved
