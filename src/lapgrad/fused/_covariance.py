"""Matrices variance · phi(S) of stationary kernels by one pass of the compiled core, on CPU tensors.

Neither distances nor derivatives of phi are kept: the gradient computes them again, in registers.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lapgrad._kernels.table import has_kernel, lookup
from lapgrad._torch.private import skips_dispatcher


class Composite(Protocol):
    """Returns variance · phi(S) of points F and G (None: F itself) in differentiable operators."""

    def __call__(self, variance: Tensor, F: Tensor, G: Tensor | None) -> Tensor:
        """Return the matrix (*batch, n, m)."""


def is_served(profile: str, variance: Tensor, F: Tensor, G: Tensor | None) -> bool:
    """Return whether the core has a kernel for these operands of ``compute_covariance``."""
    points = (F,) if G is None else (F, G)
    if (
        not F.is_cpu
        or F.dtype not in (torch.float32, torch.float64)
        or not (has_kernel("covariance", F) and has_kernel("covariance_vjp", F))
        or not skips_dispatcher((variance, *points))
    ):
        return False
    batch = F.shape[:-2]
    return (
        (not variance.dim() or variance.shape == (*batch, 1, 1))
        and all(X.dtype is F.dtype for X in (variance, *points))
        and all(X.shape[:-2] == batch for X in points)
        and bool(lookup("serves_covariance", F)(profile, F))
    )


def compute_covariance(
    profile: str, variance: Tensor, F: Tensor, G: Tensor | None, composite: Composite
) -> Tensor:
    """Return the matrix variance · phi(S), (*batch, n, m).

    Args:
        profile: The name of phi: ``Kernel.formula``.
        variance: A scalar, or (*batch, 1, 1).
        F: (*batch, n, d).
        G: (*batch, m, d); None: F itself, and the result is exactly symmetric.
        composite: For derivatives of the gradient.
    """
    if torch.is_grad_enabled() and any(X is not None and X.requires_grad for X in (variance, F, G)):
        result: Tensor = _Covariance.apply(profile, composite, variance, F, G)
        return result
    return _fill_matrix(profile, variance, F, G)


def _fill_matrix(profile: str, variance: Tensor, F: Tensor, G: Tensor | None) -> Tensor:
    K = F.new_empty(*F.shape[:-1], (F if G is None else G).shape[-2])
    if K.numel():
        G = None if G is None else G.detach().contiguous()
        lookup("covariance", K)(K, profile, variance.detach().contiguous(), F.detach().contiguous(), G)
    return K


class _Covariance(torch.autograd.Function):
    """gF = 2 Σ_j H_ij (f_i - g_j) with H = variance · phi'(S) ∘ gK, g variance = <phi(S), gK>."""

    @staticmethod
    def forward(
        ctx: Any, profile: str, composite: Composite, variance: Tensor, F: Tensor, G: Tensor | None
    ) -> Tensor:
        ctx.profile, ctx.composite = profile, composite
        ctx.save_for_backward(variance, F, G)
        return _fill_matrix(profile, variance, F, G)

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> tuple[Tensor | None, ...]:
        variance, F, G = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        # Cotangents may also be batches of a vmap, negated views, or zeros without memory.
        if torch.is_grad_enabled() or not skips_dispatcher((gK,)):
            return None, None, *_differentiate_composite(ctx.composite, (variance, F, G), needs, gK)
        gK, F = gK.contiguous(), F.contiguous()
        G = None if G is None else G.contiguous()
        of_variance = gK.new_empty(gK.shape[:-2])
        of_F, of_G = torch.empty_like(F), None if G is None else torch.empty_like(G)
        if gK.numel():
            lookup("covariance_vjp", gK)(
                of_variance, of_F, of_G, ctx.profile, variance.contiguous(), F, G, gK
            )
        else:
            for gradient in (of_variance, of_F, of_G):
                _ = gradient is None or gradient.zero_()
        of_variance = of_variance[..., None, None].sum_to_size(variance.shape)
        found = (of_variance, of_F, of_G)
        return None, None, *(g if need else None for g, need in zip(found, needs, strict=True))


def _differentiate_composite(
    composite: Composite, tensors: tuple[Tensor, Tensor, Tensor | None], needs: tuple[bool, ...], gK: Tensor
) -> list[Tensor | None]:
    """Return gradients, which can be differentiated again if gradients are recorded."""
    wanted = [X for X, need in zip(tensors, needs, strict=True) if need and X is not None]
    is_recording = torch.is_grad_enabled()
    with torch.enable_grad():
        K = composite(*tensors)
    found = iter(torch.autograd.grad(K, wanted, gK, create_graph=is_recording))
    return [next(found) if need else None for need in needs]
