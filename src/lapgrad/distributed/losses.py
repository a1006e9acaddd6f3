"""Losses that are sums over data which several processes hold, with the gradient of the whole sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed.group import Group


def sum_loss(group: Group, compute: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return the sum over all ranks of ``compute()``, with the gradient of the sum on each rank.

    Ranks exchange the value and one gradient per parameter, in one message. ``torch.distributed.nn`` would
    add up once more in the backward pass, and gradients of shared parameters would be too large by the number
    of ranks.

    Args:
        group: The processes. All of them have the same parameters.
        compute: Returns the scalar loss of the data of this rank.
        parameters: What gradients are wanted for, where they are required.

    Raises:
        LapgradError: ``compute`` has raised it on one rank; all of them raise it.
        ProcessGroupError: Another rank has failed or ended.
    """
    wanted = [value for value in parameters if value.requires_grad] if torch.is_grad_enabled() else []
    device = parameters[0].device
    with group.expect_sum(1 + sum(value.numel() for value in wanted), device) as pending:
        loss = compute()
        gradients: list[Tensor | None] = [None] * len(wanted)
        if wanted and loss.requires_grad:
            gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True))
        found = [
            torch.zeros_like(value) if gradient is None else gradient.clone()
            for value, gradient in zip(wanted, gradients, strict=True)
        ]
        total = loss.detach().clone()
        pending.start([total, *found])
        pending.wait()
    if not wanted:
        return total
    value: Tensor = _KnownGradient.apply(total, tuple(found), *wanted)
    return value


class _KnownGradient(torch.autograd.Function):
    """A scalar whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor, ...], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise _exceptions.OptionError("With a group of processes, a loss has no second derivatives.")
        return (None, None, *(gradient * gs.to(gradient.dtype) for gradient in ctx.gradients))


#: Called after a step with its number and the loss; True stops the fit.
Callback = Callable[[int, float], bool | None]


def share_callback(group: Group | None, callback: Callback | None) -> Callback | None:
    """Return a callback by which all ranks stop if one of them wants to, or if it fails on one of them."""
    if group is None or group.size == 1:
        return callback

    def call(step: int, loss: float) -> bool:
        wish = torch.zeros(1, dtype=torch.float64)
        with group.expect_sum(len(wish)) as pending:
            wish += float(callback is not None and bool(callback(step, loss)))
            pending.start([wish])
            pending.wait()
        return bool(wish > 0.0)

    return call
