"""Fits of state space models with few hyper-parameters: BFGS from a start and from several others.

BFGS begins with the Hessian at the start, by differences of gradients, and ends when, by the Hessian there,
no step would gain anything: the parameters of one model differ in their effect by orders of magnitude, and a
variance on its way to zero looks like a minimum to a method that does not know the curvature.

An evaluation of a short series takes less than a tenth of a millisecond, so the search itself has to be
short: it works on NumPy vectors, which for a few numbers are faster than tensors.

J. Nocedal, S. Wright: Numerical Optimization, algorithm 6.1 (BFGS). A. Lewis, M. Overton (2013), Nonsmooth
optimization via quasi-Newton methods: the line search, by bisection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from lapgrad import _exceptions
from lapgrad.models import _checks
from lapgrad.models._state_space.likelihood import join_parameters, set_parameters
from lapgrad.models._state_space.starts import Array
from lapgrad.models._training import progress as _progress
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.result import FitResult

_SUFFICIENT_DECREASE, _CURVATURE = 1e-4, 0.9
_TRIALS = 30
"""Evaluations of one line search, at most."""

_LONGEST_STEP = 4.0
"""A trial changes no parameter, a logarithm or a logit, by more than this."""

_LARGEST_MAGNITUDE = 100.0
"""The tolerance is relative to the loss up to this magnitude: losses are sums over all observations."""

_RESTARTS = 3
"""Other starts are tried as long as one has gained something, at most so many."""

_DIFFERENCE = 1e-4
"""By how much a parameter changes for a column of the Hessian."""

_MOST_COLUMNS = 12
"""With more parameters than this the Hessian takes too long."""

_HOPE = 0.1
"""A search from another start ends when a move gains less than this part of what it lacks."""

_NEAR_BOTTOM = 0.5
"""How far from a minimum, in logarithms or logits, the curvature there says what the loss is."""

_SAME_LOSS = 1e-10
"""Losses whose relative difference is smaller are equal, up to rounding."""

_NEAR_END = 0.1
"""Promised less than this, a search from another start ends if that does not make it the best."""

#: Returns a point with vanishing variances set to nearly zero, or None, given a point and its gradient.
Shorten = Callable[[Array, Array], Array | None]

#: Returns a point whose variances have the best common scale, and what the loss should change by; or None.
#: It is given a point and its gradient.
Rescale = Callable[[Array, Array], tuple[Array, float] | None]

#: Returns some of the points that it has evaluated, to begin from, given a minimum, its value and gradient,
#: and a function that evaluates the loss.
Propose = Callable[[Array, float, Array, Callable[[Array], float]], list[Array]]


class SearchLimits(NamedTuple):
    """When a search ends.

    Attributes:
        steps: Evaluations of the loss, at most.
        first_step: Length of the first step.
        tolerance: What counts as no change of the loss, relative to its magnitude.
        is_simple: Whether all parameters are variances: searches from other starts may then be short.
    """

    steps: int
    first_step: float
    tolerance: float
    is_simple: bool = False

    def compute_threshold(self, value: float) -> float:
        """Return the change of the loss that counts as none."""
        return self.tolerance * min(max(1.0, abs(value)), _LARGEST_MAGNITUDE)


class _Point(NamedTuple):
    x: Array
    value: float
    gradient: Array


class _SearchEnd(Exception):  # noqa: N818  (not an error: it ends the search)
    pass


def fit_series(
    who: str,
    parameters: Sequence[nn.Parameter],
    evaluate: Callable[[Array], tuple[float, Array]],
    propose: Propose,
    shorten: Shorten,
    rescale: Rescale,
    limits: SearchLimits,
    *,
    progress: bool = False,
    callback: Callback | None = None,
) -> FitResult:
    """Minimise a loss over ``parameters``, which get the best point found, and return what happened.

    Args:
        who: Name of the model, for messages.
        parameters: The tensors that are learned.
        evaluate: Returns the loss and its gradient at parameters in one vector.
        propose: Other starts.
        shorten: Sets vanishing variances to nearly zero.
        rescale: A better scale for the start.
        limits: When to stop.
        progress: Show a progress bar.
        callback: Called with the number of evaluations and the loss after each improvement; True stops the
            fit.

    Raises:
        FitError: The loss cannot be evaluated, or is not finite, at the start.
        OptionError: The number of steps is not positive.
    """
    _checks.check_steps(who, limits.steps)
    started = time.perf_counter()
    with _progress.show_progress(progress, limits.steps, who) as show:
        search = _Search(who, evaluate, shorten, limits, callback, show)
        start = join_parameters(parameters)
        search.best = _Point(start, math.nan, start)
        try:
            # A trial may be so far away that numbers overflow.
            with np.errstate(all="ignore"):
                reason, is_converged = search.run(start, propose, rescale), True
        except _SearchEnd as end:
            reason, is_converged = str(end), False
        finally:
            set_parameters(parameters, search.best.x)
    seconds = time.perf_counter() - started
    return FitResult(search.best.value, search.history, search.steps, is_converged, reason, seconds)


class _Search:
    """The state of one fit: the number of evaluations so far, and the point with the lowest loss."""

    best: _Point

    def __init__(
        self,
        who: str,
        evaluate: Callable[[Array], tuple[float, Array]],
        shorten: Shorten,
        limits: SearchLimits,
        callback: Callback | None,
        show: Callable[[int, float], None],
    ) -> None:
        self.shorten = shorten
        self.who, self.function, self.limits, self.callback, self.show = who, evaluate, limits, callback, show
        self.steps, self.history = 0, list[float]()
        #: Eigenvalues and eigenvectors of the last Hessian.
        self.spectrum: tuple[Array, Array] | None = None
        #: The point where the Hessian was computed last, and the Hessian there.
        self.bottom: tuple[_Point, Array] | None = None

    def run(self, x: Array, propose: Propose, rescale: Rescale) -> str:
        """Search from x and from other starts; return why the search counts as converged."""
        try:
            value, gradient = self.function(x)
        except _exceptions.ProcessGroupError:
            raise
        except (_exceptions.LapgradError, _exceptions.TORCH_LINALG_ERROR) as error:
            raise _exceptions.FitError(f"{self.who}.fit: step 1: {error}", 1) from error
        self.steps += 1
        if not (math.isfinite(value) and bool(np.isfinite(gradient).all())):
            raise _exceptions.FitError(
                f"{self.who}.fit: step 1: the loss or its gradient is not finite (loss {value})", 1
            )
        start = _Point(x, value, gradient)
        self.accept(start)
        rescaled = rescale(x, gradient)
        if rescaled is not None:
            there = self.evaluate(rescaled[0])
            if there.value < start.value:
                start = there
                self.accept(start)
            # If the loss is that of a change of scale, and there is nothing else to learn, its only minimum
            # has been found.
            missed = abs(there.value - value - rescaled[1])
            if len(x) == 1 and missed <= _SAME_LOSS * max(1.0, abs(value)):
                return "the best value of the only variance is known in closed form"
        reason = self.descend(start)
        for _ in range(_RESTARTS):
            before = self.best.value
            tried: list[_Point] = []

            def evaluate(x: Array, tried: list[_Point] = tried) -> float:
                """Return the loss with the best common scale of all variances, which is known without it."""
                tried.append(self.evaluate(x))
                rescaled = rescale(x, tried[-1].gradient)
                return tried[-1].value + (0.0 if rescaled is None else rescaled[1])

            for other in propose(self.best.x, before, self.best.gradient, evaluate):
                point = next(point for point in tried if point.x is other)
                if math.isfinite(point.value):
                    reason = self.descend(self.rescale_point(point, rescale), self.best.value) or reason
            if before - self.best.value <= self.limits.compute_threshold(before):
                break
        return reason

    def rescale_point(self, point: _Point, rescale: Rescale) -> _Point:
        """Return a point with the best common scale of all variances, if it is better; else the point."""
        rescaled = rescale(point.x, point.gradient)
        there = point if rescaled is None else self.evaluate(rescaled[0])
        return there if there.value < point.value else point

    def descend(self, point: _Point, to_beat: float = math.inf) -> str:
        """Run BFGS from a point. A search that is unlikely to end below ``to_beat`` is given up."""
        if point.value < to_beat < math.inf:
            self.accept(point)
        # From another start the curvature at the known minimum is good enough to begin with.
        is_fresh = self.spectrum is None or to_beat == math.inf or not self.limits.is_simple
        if self.spectrum is None or is_fresh:
            inverse = self.compute_inverse(point)
        else:
            inverse = _invert_spectrum(*self.spectrum, point.gradient)
        while True:
            direction = -(inverse @ point.gradient)
            found = None
            if float(direction @ point.gradient) < 0.0:
                found = self.search_line(point, _limit_direction(direction, point.gradient))
            if found is None:
                if is_fresh:
                    return "no further improvement can be found"
                inverse, is_fresh = self.compute_inverse(point), True
                continue
            inverse = _update_inverse(inverse, found.x - point.x, found.gradient - point.gradient)
            change, point, is_fresh = point.value - found.value, self.take_short_cut(found), False
            # What the next step would gain if the loss were quadratic.
            promise = 0.5 * float(point.gradient @ inverse @ point.gradient)
            threshold = self.limits.compute_threshold(point.value)
            if point.value < self.best.value:
                self.accept(point)
            elif (
                self.is_falling_back(point)
                or max(change, 2.0 * promise) < _HOPE * (point.value - self.best.value)
                or (promise < _NEAR_END and 1.25 * promise < point.value - self.best.value)
            ):
                return ""
            if change < threshold and promise < threshold:
                if self.limits.is_simple and point.value > to_beat - threshold:
                    return ""
                inverse, is_fresh = self.compute_inverse(point), True
                if 0.5 * float(point.gradient @ inverse @ point.gradient) < threshold:
                    return f"the loss changed by less than {threshold:.1g}, and its gradient promises no more"

    def is_falling_back(self, point: _Point) -> bool:
        """Return whether a search from another start is on its way to the minimum that is known.

        It is if it has come near that minimum, and its loss is the one that the curvature there says.
        """
        if self.bottom is None or self.bottom[0].x is not self.best.x:
            return False
        distance = point.x - self.best.x
        if np.abs(distance).max() > _NEAR_BOTTOM:
            return False
        rise, expected = point.value - self.best.value, 0.5 * float(distance @ self.bottom[1] @ distance)
        return 0.5 * expected < rise < 2.0 * expected

    def take_short_cut(self, point: _Point) -> _Point:
        """Return a point whose vanishing variances are nearly zero, if it is better; else the point itself.

        Otherwise the logarithm of a vanishing variance would move by about 1 per step, for ever smaller
        gains.
        """
        x = self.shorten(point.x, point.gradient)
        if x is None:
            return point
        there = self.evaluate(x)
        return there if there.value < point.value else point

    def compute_inverse(self, point: _Point) -> Array:
        """Return the inverse Hessian at a point, by differences of gradients, with positive eigenvalues.

        Where the curvature is negative, as that of a variance which is nearly zero, its magnitude says how
        far to go.
        """
        k = len(point.x)
        if k > _MOST_COLUMNS:
            size = float(np.abs(point.gradient).max())
            return np.eye(k) * (self.limits.first_step / size if size > 0.0 else 1.0)
        hessian = np.empty((k, k))
        for i in range(k):
            moved = point.x.copy()
            moved[i] += _DIFFERENCE
            there = self.evaluate(moved)
            if not math.isfinite(there.value):
                return np.eye(k) / max(1.0, float(np.abs(point.gradient).max()))
            hessian[i] = (there.gradient - point.gradient) / _DIFFERENCE
        hessian = 0.5 * (hessian + hessian.T)
        self.bottom = point, hessian
        values, vectors = np.linalg.eigh(hessian)
        self.spectrum = values, vectors
        return _invert_spectrum(values, vectors, point.gradient)

    def search_line(self, start: _Point, direction: Array) -> _Point | None:
        """Return a point that meets the weak conditions of Wolfe, else a better one, else None."""
        slope, step = float(direction @ start.gradient), 1.0
        low, high, best = 0.0, math.inf, start
        for _ in range(_TRIALS):
            trial = self.evaluate(start.x + step * direction)
            if not trial.value <= start.value + _SUFFICIENT_DECREASE * step * slope:
                high = step
            else:
                best = trial if trial.value < best.value else best
                if float(trial.gradient @ direction) >= _CURVATURE * slope:
                    return trial
                low = step
            if high - low <= 1e-12 * high:
                break
            if math.isinf(high):
                step = 3.0 * step
            elif low == 0.0 and math.isfinite(trial.value):
                # The minimum of the parabola through both values and the slope.
                bottom = -0.5 * slope * step**2 / max(trial.value - start.value - slope * step, 1e-300)
                step = min(max(bottom, 0.1 * high), 0.6 * high)
            else:
                step = low + (0.5 if low else 0.2) * (high - low)
        return best if best.value < start.value else None

    def evaluate(self, x: Array) -> _Point:
        """Return the loss and its gradient; the loss is infinite where it cannot be evaluated."""
        if self.steps >= self.limits.steps:
            raise _SearchEnd(f"{self.limits.steps} steps were made")
        self.steps += 1
        try:
            value, gradient = self.function(x)
        except _exceptions.ProcessGroupError:
            raise
        except (_exceptions.LapgradError, _exceptions.TORCH_LINALG_ERROR):
            return _Point(x, math.inf, np.zeros_like(x))
        is_finite = math.isfinite(value) and math.isfinite(float(gradient @ gradient))
        return _Point(x, value if is_finite else math.inf, gradient)

    def accept(self, point: _Point) -> None:
        """Keep a point as the best, and report it to progress bar and callback."""
        self.best = point
        self.history.append(point.value)
        self.show(self.steps, point.value)
        if self.callback is not None and self.callback(self.steps, point.value):
            raise _SearchEnd("the callback asked to stop")


def _invert_spectrum(values: Array, vectors: Array, gradient: Array) -> Array:
    """Return an inverse Hessian with positive eigenvalues, given those of the Hessian and its eigenvectors.

    The step that it makes of a gradient is along no eigenvector longer than ``_LONGEST_STEP``.
    """
    along = np.abs(vectors.T @ gradient)
    values = np.maximum(
        np.abs(values), np.maximum(along / _LONGEST_STEP, 1e-8 * np.abs(values).max() + 1e-300)
    )
    inverse: Array = (vectors / values) @ vectors.T
    return inverse


def _limit_direction(direction: Array, gradient: Array) -> Array:
    """Return a direction in which no parameter changes by more than ``_LONGEST_STEP``.

    The logarithm of a variance of nearly zero has no curvature, and its step is long: it is cut alone, so
    that the others keep theirs, unless that leads uphill.
    """
    largest = float(np.abs(direction).max())
    if largest <= _LONGEST_STEP:
        return direction
    cut: Array = direction.clip(-_LONGEST_STEP, _LONGEST_STEP)
    return cut if float(cut @ gradient) < 0.0 else (_LONGEST_STEP / largest) * direction


def _update_inverse(inverse: Array, s: Array, y: Array) -> Array:
    """Return (I - ρ s yᵀ) H⁻¹ (I - ρ y sᵀ) + ρ s sᵀ, ρ = 1 / yᵀ s; s, y: changes of point and gradient."""
    curvature = float(s @ y)
    Hy = inverse @ y
    size = float(y @ Hy)
    if not curvature > 1e-12 * size:
        return inverse
    # = H⁻¹ + s wᵀ + w sᵀ.
    w = (0.5 * (1.0 + size / curvature) / curvature) * s - Hy / curvature
    change = s[:, None] * w
    return inverse + change + change.T
