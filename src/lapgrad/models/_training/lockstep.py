"""Several searches for a minimum in step with each other: each round evaluates one point of every search at
once.

The searches that are behind after some rounds are given up, so that many starts cost little more than a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.models._training import lbfgs as _lbfgs
from lapgrad.models._training.lbfgs import Point

#: Returns values (s,) and gradients (s, p) of a function at points (s, p); infinity where it is not defined.
EvaluateTogether = Callable[[Tensor], tuple[Tensor, Tensor]]


class Stage(NamedTuple):
    """A stage of the race.

    Attributes:
        rounds: Evaluations of each search.
        kept: How many searches go on to the next stage, at most.
    """

    rounds: int
    kept: int


class _Runner:
    """A search, the best point it has found, and the point it asks for next (None: it has ended)."""

    def __init__(self, start: Point, rounding: float) -> None:
        self.best = start
        self._search = _lbfgs.search_minimum(start, rounding=rounding)
        self.asked: Tensor | None = None
        self._note(next(self._search, None))

    def answer(self, point: Point) -> None:
        """Give the search the point that it has asked for."""
        if point.value < self.best.value:
            self.best = point
        self._note(_lbfgs.advance(self._search, point))

    def _note(self, asked: Tensor | Point | None) -> None:
        while isinstance(asked, Point):
            asked = _lbfgs.advance(self._search, None)
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
