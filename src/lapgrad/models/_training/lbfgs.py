"""L-BFGS with a strong Wolfe line search that survives points where the function cannot be evaluated.

A trial step was too long if a matrix is not positive definite there, or the function is NaN: its value counts
as infinity, and the line search steps back. (torch.optim.LBFGS would interpolate with NaN.)

J. Nocedal, S. Wright: Numerical Optimization, algorithms 7.4 (two loops), 3.5 and 3.6 (line search).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_SUFFICIENT_DECREASE = 1e-4
_CURVATURE = 0.9
_MEMORY = 20
"""How many moves stand for the Hessian."""
_TRIALS = 25
"""Evaluations of one line search, at most."""


class Point(NamedTuple):
    """A point x, (p,), with value and gradient of the function there.

    The value is infinity where the function is not defined. ``note`` belongs to the caller of the minimiser.
    """

    x: Tensor
    value: float
    gradient: Tensor
    note: float = 0.0


#: Differences s of points and y of gradients, with 1 / <s, y>, of the last moves: they approximate the
#: Hessian.
Pairs = deque[tuple[Tensor, Tensor, float]]


def make_pairs(known: Iterable[tuple[Tensor, Tensor, float]] = ()) -> Pairs:
    """Return the memory of a search, with what an earlier one has learned."""
    return deque(known, maxlen=_MEMORY)


class _Trial(NamedTuple):
    """A point on the search line at distance ``step``, with the slope of the function along the line."""

    step: float
    slope: float
    point: Point


def iterate_lbfgs(
    evaluate: Callable[[Tensor], Point],
    start: Point,
    first_step: float = 1.0,
    *,
    pairs: Pairs | None = None,
    rounding: float = 1e-15,
) -> Iterator[Point]:
    """Yield the points that L-BFGS moves to, each better than the one before, until none better is found.

    Args:
        evaluate: The function; a value that is not finite marks a point it is not defined at.
        start: Where to begin; finite.
        first_step: Length of the first step, in units where every coordinate may change by about 1.
        pairs: What is known of the Hessian; each move adds to it. None: nothing.
        rounding: Differences of values smaller than this fraction of their magnitude are rounding errors.
    """
    search = search_minimum(start, first_step, pairs=pairs, rounding=rounding)
    asked = next(search, None)
    while asked is not None:
        if isinstance(asked, Point):
            yield asked
            asked = advance(search, None)
        else:
            asked = advance(search, evaluate(asked))


#: A search: it yields points x to be evaluated, and is sent their ``Point``. When it moves to a point, it
#: yields that ``Point``, and is sent None.
Search = Generator[Tensor | Point, Point | None, None]


def advance(search: Search, answer: Point | None) -> Tensor | Point | None:
    """Send an answer to a search, and return what it yields next; None if it has ended."""
    try:
        return search.send(answer)
    except StopIteration:
        return None


def search_minimum(
    start: Point, first_step: float = 1.0, *, pairs: Pairs | None = None, rounding: float = 1e-15
) -> Search:
    """Run L-BFGS as a coroutine, for several searches that are evaluated together. See ``iterate_lbfgs``."""
    pairs = make_pairs() if pairs is None else pairs
    point = start
    while True:
        direction = -_apply_inverse_hessian(point.gradient, pairs)
        slope = float(torch.dot(direction, point.gradient))
        if not slope < 0.0:
            if not pairs:
                return
            pairs.clear()
            continue
        step = 1.0 if pairs else min(1.0, first_step / float(direction.abs().max()))
        found = yield from _search_line(point, direction, slope, step, rounding)
        if found is None:
            if not pairs:
                return
            # The approximate Hessian may be the cause: try once more along the gradient.
            pairs.clear()
            continue
        s, y = found.x - point.x, found.gradient - point.gradient
        curvature = float(torch.dot(s, y))
        if curvature > torch.finfo(s.dtype).eps * float(torch.dot(y, y)):
            pairs.append((s, y, 1.0 / curvature))
        point = found
        yield point


def _apply_inverse_hessian(gradient: Tensor, pairs: Pairs) -> Tensor:
    """Return H⁻¹ g, with H⁻¹ from the differences s of points and y of gradients (two loops)."""
    r, weights = gradient.clone(), []
    for s, y, rho in reversed(pairs):
        weights.append(rho * float(torch.dot(s, r)))
        r.add_(y, alpha=-weights[-1])
    if pairs:
        s, y, rho = pairs[-1]
        r.mul_(1.0 / (rho * float(torch.dot(y, y))))
    for (s, y, rho), weight in zip(pairs, reversed(weights), strict=True):
        r.add_(s, alpha=weight - rho * float(torch.dot(y, r)))
    return r


def _search_line(
    start: Point,
    direction: Tensor,
    slope: float,
    step: float,
    rounding: float,
) -> Generator[Tensor | Point, Point | None, Point | None]:
    """Return a point of the line that meets the strong Wolfe conditions, else a better one, else None."""

    def make_trial(step: float, point: Point | None) -> _Trial:
        assert point is not None, "the point that was asked for has to be sent"
        if not math.isfinite(point.value):
            return _Trial(step, math.nan, point)
        return _Trial(step, float(torch.dot(direction, point.gradient)), point)

    def is_too_high(trial: _Trial, best: _Trial) -> bool:
        bound = start.value + _SUFFICIENT_DECREASE * trial.step * slope
        return not (trial.point.value <= bound and (trial.point.value < best.point.value or best is origin))

    origin = best = _Trial(0.0, slope, start)
    far: _Trial | None = None
    for _ in range(_TRIALS):
        trial = make_trial(step, (yield start.x.add(direction, alpha=step)))
        if is_too_high(trial, best):
            far = trial
        elif abs(trial.slope) <= -_CURVATURE * slope:
            return trial.point
        else:
            # The minimum lies on the side to which the function decreases.
            beyond = far.step if far is not None else math.inf
            if trial.slope * (beyond - trial.step) >= 0.0:
                far = best
            best = trial
        if far is None:
            step = 3.0 * step
            continue
        still_to_gain = abs(best.slope * (far.step - best.step))
        if still_to_gain <= rounding * max(1.0, abs(best.point.value)):
            break
        step = _interpolate_step(best, far)
    return best.point if best.point.value < start.value else None


def _interpolate_step(best: _Trial, far: _Trial) -> float:
    """Return the next step: the minimum of the cubic through both trials, kept away from the ends.

    Where the function is not defined at ``far``, it is a fifth of the way to it.
    """
    width = far.step - best.step
    if not math.isfinite(far.point.value):
        return best.step + 0.2 * width
    d = best.slope + far.slope - 3.0 * (best.point.value - far.point.value) / (best.step - far.step)
    discriminant = d * d - best.slope * far.slope
    if discriminant < 0.0:
        return best.step + 0.5 * width
    root = math.copysign(math.sqrt(discriminant), width)
    denominator = far.slope - best.slope + 2.0 * root
    position = 0.5 if denominator == 0.0 else 1.0 - (far.slope + root - d) / denominator
    return best.step + min(max(position, 0.1), 0.9) * width
