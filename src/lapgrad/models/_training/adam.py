"""Adam with gradients from ``torch.autograd.grad``: the loop for losses that are evaluated as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

_Value = TypeVar("_Value")


def move_parameters(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> None:
    """Take one step of ``optimizer`` with these gradients; a parameter whose gradient is None stays."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def minimise_with_adam(
    parameters: Sequence[Tensor],
    evaluate: Callable[[], tuple[_Value, Sequence[Tensor | None]]],
    compute_rate: Callable[[int], float],
    *,
    steps: int | None = None,
    accept: Callable[[_Value], None] | None = None,
) -> None:
    """Minimise a loss over ``parameters``, which are changed in place.

    Args:
        parameters: Leaves that require gradients.
        evaluate: Returns the loss and its gradients at the present parameters.
        compute_rate: Returns the learning rate of a step, given its number.
        steps: How many steps; None: until ``accept`` raises an exception.
        accept: Called with each loss before the parameters move away from where it was evaluated.
    """
    optimizer = torch.optim.Adam(parameters, compute_rate(0))
    for step in itertools.count() if steps is None else range(steps):
        optimizer.param_groups[0]["lr"] = compute_rate(step)
        value, gradients = evaluate()
        if accept is not None:
            accept(value)
        # Gradients are stored in the parameters only now: ``accept`` may call code of users that has its own.
        move_parameters(optimizer, parameters, gradients)
        optimizer.zero_grad()
