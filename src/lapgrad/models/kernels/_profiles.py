"""Functions of squared distances whose derivative is known: one sweep for both, where autograd has many."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lapgrad._torch_private import skips_dispatcher


class Profile(Protocol):
    """f of a stationary kernel; ``profile_and_slope`` may be None."""

    def profile(self, S: Tensor) -> Tensor:
        """f(S)."""

    def profile_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """f(S) and f'(S), without recording."""


def profiled(of: Profile, S: Tensor) -> Tensor:
    """f(S), elementwise."""
    if not (skips_dispatcher((S,)) and torch.is_grad_enabled() and S.requires_grad):
        return of.profile(S)
    with torch.no_grad():
        both = of.profile_and_slope(S)
    if both is None:
        return of.profile(S)
    result: Tensor = _Profiled.apply(of, S, *both)
    return result


class _Profiled(torch.autograd.Function):
    """gS = gf ∘ f'(S); where that is differentiated, through the formula of f."""

    @staticmethod
    def forward(ctx: Any, of: Profile, S: Tensor, f: Tensor, slope: Tensor) -> Tensor:
        ctx.of = of
        ctx.save_for_backward(S, slope)
        return f

    @staticmethod
    def backward(ctx: Any, gf: Tensor) -> tuple[None, Tensor, None, None]:
        S, slope = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, gf * slope, None, None
        (gS,) = torch.autograd.grad(ctx.of.profile(S), S, gf, create_graph=True)
        return None, gS, None, None
