"""The matrix variance · exp(-|f - g|² / 2) between two sets of points, as one function.

The exponents, -|f|²/2 - |g|²/2 + fᵀg + log(variance), are one product of points with two columns more, and
the exponential is taken in place. With H = gK ∘ K everything backward needs is a product with H:

    gF = H G - diag(H 1) F,   gG = Hᵀ F - diag(Hᵀ 1) G,   g variance = 1ᵀ H 1 / variance
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch_private import skips_dispatcher

#: Exponents are rounded to eps of the largest squared norm: with float64, and points not farther from their
#: centre than this many lengthscales, the matrix is right to ten digits.
_FARTHEST = 300.0


def suits(F: Tensor, G: Tensor, variance: Tensor) -> bool:
    """Whether products of the points are precise enough, and the call is a plain eager one."""
    if F.dtype is not torch.float64 or not F.is_cpu or not skips_dispatcher((F, G, variance)):
        return False
    if not (F.numel() and G.numel()):
        return False
    with torch.no_grad():
        centre = _centre(G)
        farthest = max((F - centre).abs().max().item(), (G - centre).abs().max().item())
    return farthest < _FARTHEST  # also false for NaN


def gaussian(F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
    """K (*batch, n, m) of F (*batch, n, d) and G (*batch, m, d); variance is a scalar."""
    if torch.is_grad_enabled() and (F.requires_grad or G.requires_grad or variance.requires_grad):
        result: Tensor = _Gaussian.apply(F, G, variance)
        return result
    return _computed(F, G, variance)


def _centre(G: Tensor) -> Tensor:
    """Distances do not depend on it, but their rounding errors do."""
    return G.detach().mean(-2, keepdim=True)


def _computed(F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
    centre = _centre(G)
    F, G = F - centre, G - centre
    of_rows = F.square().sum(-1, keepdim=True).mul_(-0.5)
    of_columns = G.square().sum(-1, keepdim=True).mul_(-0.5).add_(variance.log())
    left = torch.cat([F, of_rows, torch.ones_like(of_rows)], -1)
    right = torch.cat([G, torch.ones_like(of_columns), of_columns], -1)
    return (left @ right.mT).exp_()


class _Gaussian(torch.autograd.Function):
    """The backward is in differentiable operations of F, G, K and gK, so it has derivatives itself."""

    @staticmethod
    def forward(ctx: Any, F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
        K = _computed(F, G, variance)
        ctx.save_for_backward(F, G, variance, K)
        return K

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        F, G, variance, K = ctx.saved_tensors
        needs_F, needs_G, needs_variance = ctx.needs_input_grad
        centre = _centre(G)
        H = gK * K
        gF = gG = g_variance = None
        if needs_F or needs_variance:
            gF, total = _pulled(H, F - centre, G - centre)
            g_variance = total / variance if needs_variance else None
        if needs_G:
            gG, _ = _pulled(H.mT, G - centre, F - centre)
        return (
            gF.sum_to_size(F.shape) if needs_F and gF is not None else None,
            gG.sum_to_size(G.shape) if gG is not None else None,
            g_variance,
        )


def _pulled(H: Tensor, F: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """H G - diag(H 1) F, and 1ᵀ H 1: one product."""
    moments = H @ torch.cat([G, torch.ones_like(G[..., :1])], -1)
    sums = moments[..., -1:]
    return moments[..., :-1] - sums * F, sums.sum()
