"""Several searches for a minimum in step with each other: each round evaluates one point of every search at
once.

The searches that are behind after some rounds are given up, so that many starts cost little more than a few.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.models._training import lbfgs as _lbfgs
from lapgrad.models._training.lbfgs import Point

#: Returns values (s,) and gradients (s, p) of a function at points (s, p); infinity where it is not defined.
EvaluateTogether = Callable[[Tensor], tuple[Tensor, Tensor]]


_QUIET_MOVES = 2
"""A search has converged after so many moves in a row that gain less than the threshold."""


class Stage(NamedTuple):
    """A stage of the race.

    Attributes:
        rounds: Evaluations of each search.
        kept: How many searches go on to the next stage, at most.
    """

    rounds: int
    kept: int


class Minima(NamedTuple):
    """Where searches have ended.

    Attributes:
        points: The best point of each search, in the order of the starts.
        history: The sum of the best values after each round.
        rounds: Evaluations of each search.
        converged: Whether all searches have converged.
    """

    points: list[Point]
    history: list[float]
    rounds: int
    converged: bool


class _Runner:
    """A search, the best point it has found, and the point it asks for next (None: it has ended)."""

    def __init__(self, start: Point, rounding: float, threshold: float = 0.0) -> None:
        self.best = self._last = start
        self._search = _lbfgs.search_minimum(start, rounding=rounding)
        self._threshold, self._quiet = threshold, 0
        self.asked: Tensor | None = None
        self._note(next(self._search, None))

    def answer(self, point: Point) -> None:
        """Give the search the point that it has asked for."""
        if point.value < self.best.value:
            self.best = point
        self._note(_lbfgs.advance(self._search, point))

    def _note(self, asked: Tensor | Point | None) -> None:
        while isinstance(asked, Point):
            is_quiet = self._last.value - asked.value < self._threshold
            self._last, self._quiet = asked, self._quiet + 1 if is_quiet else 0
            asked = None if self._quiet >= _QUIET_MOVES else _lbfgs.advance(self._search, None)
        self.asked = asked


def race_searches(
    evaluate: EvaluateTogether, starts: Tensor, stages: Sequence[Stage], rounding: float
) -> list[Point]:
    """Return the best points of the searches that are left after all stages, the best one first.

    Args:
        evaluate: The function.
        starts: (s, p), where the searches begin. Those where the function is not defined are left out.
        stages: Searches behind those that are kept are given up after each stage.
        rounding: See ``lbfgs.iterate_lbfgs``.
    """
    runners = [_Runner(point, rounding) for point in _evaluate_points(evaluate, list(starts))]
    for stage in stages:
        for _ in range(stage.rounds):
            active = [(runner, runner.asked) for runner in runners if runner.asked is not None]
            if not active:
                break
            answers = _evaluate_points(evaluate, [x for _, x in active], keep_undefined=True)
            for (runner, _), point in zip(active, answers, strict=True):
                runner.answer(point)
        runners = sorted(runners, key=lambda runner: runner.best.value)[: stage.kept]
    return [runner.best for runner in runners]


def _evaluate_points(
    evaluate: EvaluateTogether, xs: Sequence[Tensor], *, keep_undefined: bool = False
) -> list[Point]:
    values, gradients = evaluate(torch.stack(list(xs)))
    points = [
        Point(x, value, gradient) for x, value, gradient in zip(xs, values.tolist(), gradients, strict=True)
    ]
    return [point for point in points if keep_undefined or math.isfinite(point.value)]


def minimise_together(
    evaluate: Callable[[list[int], Tensor], tuple[Tensor, Tensor]],
    starts: Tensor,
    rounds: int,
    threshold: float,
    rounding: float = 1e-15,
) -> Minima:
    """Minimise one function for each row of ``starts`` (b, p), all in step; no points if one is not defined
    there.

    Args:
        evaluate: Returns values (s,) and gradients (s, p) of some of the functions, at points (s, p).
        starts: Where the searches begin.
        rounds: Evaluations of each function, at most.
        threshold: A search has converged after two moves in a row that gain less.
        rounding: See ``lbfgs.iterate_lbfgs``.
    """
    everything = list(range(len(starts)))
    first = _evaluate_points(functools.partial(evaluate, everything), list(starts), keep_undefined=True)
    if not all(math.isfinite(point.value) for point in first):
        return Minima([], [], 1, False)
    runners = [_Runner(point, rounding, threshold) for point in first]
    history = [sum(point.value for point in first)]
    while len(history) < rounds:
        active = [(index, runner.asked) for index, runner in enumerate(runners) if runner.asked is not None]
        if not active:
            break
        indices = [index for index, _ in active]
        here = functools.partial(evaluate, indices)
        answers = _evaluate_points(here, [x for _, x in active], keep_undefined=True)
        for index, point in zip(indices, answers, strict=True):
            runners[index].answer(point)
        history.append(sum(runner.best.value for runner in runners))
    converged = all(runner.asked is None for runner in runners)
    return Minima([runner.best for runner in runners], history, len(history), converged)
