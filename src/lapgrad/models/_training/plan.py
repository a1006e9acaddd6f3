"""Limits and learning rates of a training on minibatches."""

from __future__ import annotations

import dataclasses
import math

from lapgrad import _exceptions
from lapgrad.models import _checks


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Limits and learning rates of one training.

    Attributes:
        batch: Rows per step.
        steps: Largest number of steps; None: no limit.
        seconds: Longest time; None: no limit.
        lr: Learning rate of Adam at the start.
        final_lr: Learning rate at the end, relative to the start; it decreases along half a cosine.
        every: Steps between two checks of the loss.
    """

    batch: int
    steps: int | None
    seconds: float | None
    lr: float
    final_lr: float
    every: int

    def compute_rate(self, step: int, seconds: float) -> float:
        """Return the learning rate after so many steps and seconds."""
        done = 0.0
        if self.steps is not None:
            done = step / self.steps
        if self.seconds is not None:
            done = max(done, seconds / self.seconds)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return self.lr * (self.final_lr + (1.0 - self.final_lr) * cosine)

    def find_stop_reason(self, step: int, seconds: float) -> str | None:
        """Return why to stop after so many steps and seconds; None: go on."""
        if self.steps is not None and step >= self.steps:
            return f"{self.steps} steps were made"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{self.seconds:g} seconds have passed"
        return None


def make_plan(
    who: str,
    count: int,
    batch: int,
    steps: int | None,
    epochs: float | None,
    seconds: float | None,
    lr: float,
    final_lr: float,
    every: int,
) -> TrainingPlan:
    """Check the arguments of ``fit`` for ``count`` rows of data, and return them as a plan.

    ``epochs`` are converted into steps.
    """
    if steps is not None and epochs is not None:
        raise _exceptions.OptionError(
            f"{who}: steps and epochs are two names of one limit: pass one of them."
        )
    if steps is None and epochs is None and seconds is None:
        raise _exceptions.OptionError(f"{who}: pass steps, epochs or seconds: how long to learn.")
    named = {"batch": batch, "steps": steps, "epochs": epochs, "seconds": seconds, "lr": lr, "every": every}
    for name, value in named.items():
        if value is not None and not value > 0:
            raise _exceptions.OptionError(f"{who}: {name} must be positive, got {value}.")
    if not 0.0 < final_lr <= 1.0:
        raise _exceptions.OptionError(f"{who}: final_lr must be in (0, 1], got {final_lr}.")
    _checks.check_gradients_are_allowed(who)
    if steps is not None:
        _checks.check_steps(who, steps)
    batch = min(batch, count)
    if epochs is not None:
        steps = max(1, round(epochs * math.ceil(count / batch)))
    return TrainingPlan(batch, steps, seconds, lr, final_lr, every)
