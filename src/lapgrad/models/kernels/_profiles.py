"""Functions of squared distances with known derivatives: one sweep over memory, where autograd needs many."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lapgrad._torch.private import skips_dispatcher


class Profile(Protocol):
    """The function f of a stationary kernel variance · f(S)."""

    def profile(self, S: Tensor) -> Tensor:
        """Return f(S)."""

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return f(S) and f'(S) in buffers of their own, without a graph; None: there is no formula."""


def apply_scaled_profile(of: Profile, variance: Tensor, S: Tensor) -> Tensor:
    """Return variance · f(S), elementwise; variance is a scalar, or (*batch, 1, 1)."""
    recorded = torch.is_grad_enabled() and (S.requires_grad or variance.requires_grad)
    if not recorded or not skips_dispatcher((S, variance)):
        return variance * of.profile(S)
    with torch.no_grad():
        both = of.profile_and_slope(S)
    if both is None:
        return variance * of.profile(S)
    result: Tensor = _ScaledProfile.apply(of, variance, S, *both)
    return result


class _ScaledProfile(torch.autograd.Function):
    """gS = gK ∘ variance f'(S), g variance = 1ᵀ (gK ∘ f(S)) 1; their derivatives come from f itself."""

    @staticmethod
    def forward(ctx: Any, of: Profile, variance: Tensor, S: Tensor, f: Tensor, slope: Tensor) -> Tensor:
        ctx.of = of
        ctx.save_for_backward(variance, S, f, slope.mul_(variance))
        return variance * f

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> tuple[None, Tensor | None, Tensor | None, None, None]:
        variance, S, f, slope = ctx.saved_tensors
        _, needs_variance, needs_S, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            f = ctx.of.profile(S)
            gS = torch.autograd.grad(f, S, gK * variance, create_graph=True)[0] if needs_S else None
        else:
            gS = gK * slope if needs_S else None
        return None, (gK * f).sum_to_size(variance.shape) if needs_variance else None, gS, None, None
