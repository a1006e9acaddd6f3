"""Where fits of state space models begin: scales of the data, and other starts to try at the end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lapgrad.models._bounds import Bounds
from lapgrad.models._parameters import Hyperparameter
from lapgrad.models._state_space.variances import Variance

Array = npt.NDArray[np.float64]

_RAISED = (0.3, 0.03, 0.003, 3e-4, 3e-5)
"""Parts of the largest variance that one which is nearly zero is set to."""

_NEGLIGIBLE = 1e-2
"""A variance below this part of the largest one counts as nearly zero."""

_LOWERED, _SHIFTED = 6.0, 1.0
"""By how much the logarithm of a variance is lowered, and the logit of another parameter shifted."""


_RATIOS = (1.5, 3.0, 6.0)
"""By how much the logarithm of the ratio of two variances is changed, to either side."""


_PARTIALS, _DECAY = (-1.5, -0.5, 0.0, 0.6, 1.1, 1.5, 2.0, 3.0), 2.0
"""Logits of the first partial autocorrelation, and minus that of the second, at which an autoregression
oscillates: the periods are 2.8 to 15 steps, in ratios of about 1.25."""

_AUDIBLE = 2.5
"""By how much the logarithm of a variance is lowered where another one oscillates: less than ``_LOWERED``,
because the loss does not depend on the period of what is nearly zero."""


_ALLOWED = 15.0
"""How much above the minimum the loss may be if a variance of nearly zero is raised."""


_VANISHED = -20.0
"""Logarithm of the part of the largest variance that one which vanishes is set to."""


_SAME_SCALE = 0.05
"""A change of the logarithm of all variances by less than this is not worth an evaluation."""


class SeriesFacts(NamedTuple):
    """Facts about series from which components choose their first hyper-parameters.

    Attributes:
        values: (N, T, p), the series; NaN: missing.
        variance: Mean variance of the data.
        step_variance: Variance of the unpredictable part of an observation, from changes between steps and
        between seasons.
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
    changed, count = values.double().cpu().numpy(), 1.0
    for lag in (1, *sorted({round(period) for period in periods})):
        if changed.shape[1] > lag + 2:
            changed, count = changed[:, lag:] - changed[:, :-lag], 2.0 * count
    known = changed[~np.isnan(changed)]
    size = float(np.square(known).mean()) / count if len(known) else math.nan
    is_usable = math.isfinite(size) and size > 1e-12 * variance
    return SeriesFacts(values, variance, min(size, variance) if is_usable else variance)


class LearnedNumber(NamedTuple):
    """One number that is learned.

    Attributes:
        is_variance: Whether it is a logarithm: of a variance, or of a standard deviation.
        power: exp(power · number) is the variance.
        can_shift: Whether other starts may shift it.
        size: How many numbers there are in its tensor.
    """

    is_variance: bool
    power: float
    can_shift: bool
    size: int = 1


def describe_numbers(
    found: Sequence[tuple[Tensor, Hyperparameter, bool, Bounds | None]], parameters: Sequence[Tensor]
) -> list[LearnedNumber] | None:
    """Return what each number of the learned parameters is; None: some are not hyper-parameters.

    A variance with bounds is no variance here if it is not linear in the exponential of its raw number.

    Args:
        found: Raw tensors of all hyper-parameters, with their descriptors, whether they are standard
            deviations, and their bounds.
        parameters: The learned tensors.
    """
    known = {id(raw): (descriptor, is_deviation, bounds) for raw, descriptor, is_deviation, bounds in found}
    numbers = []
    for parameter in parameters:
        if id(parameter) not in known:
            return None
        descriptor, is_deviation, bounds = known[id(parameter)]
        is_linear = bounds is None or (math.isinf(bounds.high) and (bounds.low == 0.0 or not is_deviation))
        is_variance = is_linear and (is_deviation or isinstance(descriptor, Variance))
        has_interval = bounds is not None and math.isfinite(bounds.low) and math.isfinite(bounds.high)
        is_bounded = has_interval or descriptor.is_interval
        power, count = 2.0 if is_deviation else 1.0, parameter.numel()
        numbers += [LearnedNumber(is_variance, power, is_variance or is_bounded, count)] * count
    return numbers


def propose_start(
    numbers: Sequence[LearnedNumber],
    x: Array,
    value: float,
    gradient: Array,
    evaluate: Callable[[Array], float],
) -> list[Array]:
    """Return the best of several points around a minimum that a descent from it would not have reached.

    The logarithm of a variance that has become nearly zero has no gradient left, and a fit would stay there
    for ever: such a variance is raised. Others are lowered, until they are nearly zero, or raised, and
    parameters in an interval are shifted. Of the points for each parameter the one with the lowest loss
    counts, also if it is above that of the minimum. Those with the lowest losses are returned, the best one
    first: half as many as there are parameters, at most three. A small change may be undone by the search:
    up to two that raise a variance as far as the loss allows it, or that change the sign of a correlation,
    are returned, too. Two variances are one ratio: if the loss only grows on both sides of the minimum, there
    is no other.

    Variances also stand in for each other: a trend may follow the data by its slope or by its level. With
    three parameters or more, the largest variance changes places with each of the others, and two of these
    change places: the best point of either kind follows. An autoregression may oscillate, with several
    periods between which the loss is higher, and with another variance: the two best of these points come
    last.

    Args:
        numbers: What the coordinates are.
        x: (k,), the minimum.
        value: The loss there.
        gradient: (k,), its gradient.
        evaluate: Returns the loss at a point.
    """
    logs = [number.power * float(x[i]) for i, number in enumerate(numbers) if number.is_variance]
    largest = max(logs, default=0.0)
    # A variance that has vanished has no ratio to scan: it is raised below.
    if len(numbers) == len(logs) == 2 and min(logs) > largest + math.log(_NEGLIGIBLE):
        return _scan_ratio(numbers, x, value, evaluate)
    found_best: list[tuple[float, int, Array]] = []
    far: dict[int, tuple[float, Array]] = {}
    for i, number in enumerate(numbers):
        best, lowest = None, math.inf
        for change in _list_changes(number, float(x[i]), largest, float(gradient[i])):
            candidate = x.copy()
            candidate[i] += change
            found = evaluate(candidate)
            if found < value + _ALLOWED and (change > 0.0 if number.is_variance else abs(change) != _SHIFTED):
                far.setdefault(i, (found, candidate))  # the largest change comes first
            # Lowering a variance without effect leads to no new minimum: the loss stays the same.
            if found < lowest and not _is_same(found, value):
                best, lowest = candidate, found
        if best is not None:
            found_best.append((lowest, i, best))
    chosen = sorted(found_best, key=lambda one: one[:2])[: min(3, (len(numbers) + 1) // 2)]
    swapped = _swap_largest(numbers, x) if len(numbers) > 2 else []
    proposed = [candidate for _, _, candidate in chosen]
    for _, candidate in sorted(far.values(), key=lambda one: one[0])[:2]:
        proposed += [candidate] if all(candidate is not one for one in proposed) else []
    others = _swap_others(numbers, x)
    bases = [x, *_swap_largest(numbers, x, _AUDIBLE), *others]
    turned = [point for base in bases for point in _oscillate(numbers, base)]
    for points, count in ((swapped, 1), (others, 1), (turned, 2)):
        losses = sorted((evaluate(point), i) for i, point in enumerate(points))
        proposed += [points[i] for loss, i in losses if not _is_same(loss, value)][:count]
    return proposed


def _is_same(loss: float, value: float) -> bool:
    """Return whether a loss is that of the minimum: a change without effect leads to no new one."""
    return abs(loss - value) <= 1e-6 * max(1.0, abs(value))


def _scan_ratio(
    numbers: Sequence[LearnedNumber], x: Array, value: float, evaluate: Callable[[Array], float]
) -> list[Array]:
    """Return points at which the loss of two variances is lower than at a ratio nearer to the minimum."""
    chosen = []
    for sign in (-1.0, 1.0):
        before = value
        for distance in _RATIOS:
            point = x.copy()
            point[0] += sign * distance / numbers[0].power
            found = evaluate(point)
            if found < before - 1e-6 * max(1.0, abs(value)):
                chosen.append(point)
                break
            before = found
    return chosen


def _swap_largest(numbers: Sequence[LearnedNumber], x: Array, lowered: float = _LOWERED) -> list[Array]:
    """Return one point per smaller variance: it becomes as large as the largest, which is lowered.

    Variances below the lowered one are raised to it, because nearly zero they would have no gradient.
    """
    sizes = [
        number.power * float(x[i]) if number.is_variance else -math.inf for i, number in enumerate(numbers)
    ]
    largest = int(np.argmax(sizes))
    points = []
    for i, number in enumerate(numbers):
        if number.is_variance and i != largest:
            point = x.copy()
            for j, other in enumerate(numbers):
                if other.is_variance:
                    small = sizes[largest] - lowered
                    point[j] = (small if j == largest else max(small, sizes[j])) / other.power
            point[i] = sizes[largest] / number.power
            points.append(point)
    return points


def _swap_others(numbers: Sequence[LearnedNumber], x: Array) -> list[Array]:
    """Return points at which two variances that are not the largest one have changed places."""
    sizes = {i: number.power * float(x[i]) for i, number in enumerate(numbers) if number.is_variance}
    others = sorted(sizes, key=lambda i: sizes[i])[:-1]
    points = []
    for first, second in itertools.combinations(others, 2):
        point = x.copy()
        point[first] = sizes[second] / numbers[first].power
        point[second] = sizes[first] / numbers[second].power
        points.append(point)
    return points


def _oscillate(numbers: Sequence[LearnedNumber], x: Array) -> list[Array]:
    """Return points at which an autoregression oscillates: of several steps with short to long periods.

    The partial autocorrelations (p, -q) have the period 2 pi / arccos((1 + q) p / (2 √q)).
    """
    first = next((i for i, one in enumerate(numbers) if one.can_shift and not one.is_variance), None)
    if first is None:
        return []
    is_single, points = numbers[first].size == 1, []
    for logit in (-_DECAY,) if is_single else _PARTIALS:
        point = x.copy()
        point[first] = logit
        if not is_single:
            point[first + 1] = -_DECAY
        points.append(point)
    return points


def _list_changes(number: LearnedNumber, at: float, largest: float, slope: float) -> list[float]:
    if not number.can_shift:
        return []
    if not number.is_variance:
        return [-2.0 * at, -_SHIFTED, _SHIFTED]  # the first one changes the sign of a correlation
    size = number.power * at
    if size < largest + math.log(_NEGLIGIBLE):
        # By the sign of its gradient a variance of nearly zero should be larger, or is right to be zero.
        parts = _RAISED if slope < 0.0 else (_RAISED[0], *_RAISED[1:4:2])
        return [(largest + math.log(part) - size) / number.power for part in parts]
    return [-_LOWERED / number.power, 0.5 * _LOWERED / number.power]


def shorten_way(numbers: Sequence[LearnedNumber], x: Array, gradient: Array) -> Array | None:
    """Return a point with small variances that vanish set to nearly zero; None: there are none."""
    # For a few numbers lists take less time than arrays.
    sizes = [
        number.power * at if number.is_variance else -math.inf
        for number, at in zip(numbers, x.tolist(), strict=True)
    ]
    largest = max(sizes)
    moved = None
    for i, slope in enumerate(gradient.tolist()):
        below = sizes[i] - largest
        if 1e-6 < slope < 0.5 and _VANISHED + 1.0 < below < -3.0:
            moved = x.copy() if moved is None else moved
            moved[i] += (_VANISHED - below) / numbers[i].power
    return moved


def rescale_variances(
    numbers: Sequence[LearnedNumber], count: int, x: Array, gradient: Array
) -> tuple[Array, float] | None:
    """Return a point with the variances multiplied by a common factor that is best; None: there are none.

    If all variances are learned (other parameters have no unit), the loss for a factor c is
    (count log c + quadratic / c) / 2 and a constant, and its derivative at c = 1, (count - quadratic) / 2,
    says what the quadratic form is. The change of the loss in this case is returned, too.

    Args:
        numbers: What the coordinates are.
        count: Observations, less those that determine diffuse states.
        x: (k,), the point.
        gradient: (k,), the gradient of the loss there.
    """
    powers = np.array([number.power if number.is_variance else math.inf for number in numbers])
    slope = float((gradient / powers).sum())
    is_scaled = count > 0 and any(number.is_variance for number in numbers)
    factor = 1.0 - 2.0 * slope / count if is_scaled else 1.0
    if not (math.isfinite(factor) and factor > 0.0) or abs(math.log(factor)) < _SAME_SCALE:
        return None
    change = 0.5 * (count * math.log(factor) + (count - 2.0 * slope) * (1.0 / factor - 1.0))
    return x + math.log(factor) / powers, change
