"""Squared Euclidean distances between points, and a square root that has derivatives at 0.

    S_ij = |x_i - z_j|²

In few dimensions they are computed from the differences: exact at any offset, and 0 where points coincide. In
more dimensions they are |x|² + |z|² - 2 xᵀz of centred points, at the speed of a matrix product; distances
within rounding errors of 0 are set to 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch.precision import in_full_precision
from lapgrad._torch.private import skips_dispatcher
from lapgrad.models._products import multiply

_FEW_DIMENSIONS = 4
_ROUNDINGS = 8.0
"""Squared distances smaller than this many eps of the largest squared norm count as 0."""


def compute_squared_distances(X: Tensor, Z: Tensor | None = None) -> Tensor:
    """Return S (*batch, n, m) of X (*batch, n, d) and Z (*batch, m, d).

    Z None: of X with itself, exactly symmetric with a diagonal of 0.
    """
    if not skips_dispatcher((X, Z)):
        return _compute_by_differences(X, X if Z is None else Z)
    if torch.is_grad_enabled() and (X.requires_grad or (Z is not None and Z.requires_grad)):
        result: Tensor = _SquaredDistances.apply(X, Z)
        return result
    return _compute_distances(X, Z)


def take_root(S: Tensor) -> Tensor:
    """Return √S, with the derivative 0 at 0, so that the gradient of points that coincide is finite."""
    if skips_dispatcher((S,)) and not (S.requires_grad and torch.is_grad_enabled()):
        return S.sqrt()
    apart = S > 0.0
    return torch.where(apart, torch.where(apart, S, 1.0).sqrt(), 0.0)


class _SquaredDistances(torch.autograd.Function):
    """With H the cotangent of S: gX = 2 (diag(H 1) X - H Z) and gZ = 2 (diag(Hᵀ1) Z - Hᵀ X).

    The backward uses differentiable operations of X, Z and H, so that it can be differentiated.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor | None) -> Tensor:
        ctx.save_for_backward(X, Z)
        return _compute_distances(X, Z)

    @staticmethod
    def backward(ctx: Any, H: Tensor) -> tuple[Tensor | None, Tensor | None]:
        X, Z = ctx.saved_tensors
        if Z is None:
            both = 2.0 * (_sum_weighted_differences(H, X, X) + _sum_weighted_differences(H.mT, X, X))
            return both.sum_to_size(X.shape), None
        gX = (
            (2.0 * _sum_weighted_differences(H, X, Z)).sum_to_size(X.shape)
            if ctx.needs_input_grad[0]
            else None
        )
        gZ = (
            (2.0 * _sum_weighted_differences(H.mT, Z, X)).sum_to_size(Z.shape)
            if ctx.needs_input_grad[1]
            else None
        )
        return gX, gZ


def _sum_weighted_differences(H: Tensor, X: Tensor, Z: Tensor) -> Tensor:
    """Return Σ_j h_ij (x_i - z_j); points are centred first, to avoid differences of large numbers."""
    centre = Z.detach().mean(-2, keepdim=True)
    return H.sum(-1, keepdim=True) * (X - centre) - multiply(H, Z - centre)


def _compute_distances(X: Tensor, Z: Tensor | None) -> Tensor:
    d = X.shape[-1]
    if d > _FEW_DIMENSIONS:
        return _compute_by_products(X, Z)
    columns = X if Z is None else Z
    if d == 0:
        return _compute_by_differences(X, columns)
    S = (X[..., :, None, 0] - columns[..., None, :, 0]).square_()
    for k in range(1, d):
        difference = X[..., :, None, k] - columns[..., None, :, k]
        S.addcmul_(difference, difference)
    return S


def _compute_by_differences(X: Tensor, Z: Tensor) -> Tensor:
    """Return S by the plain formula: for all transforms of PyTorch, with (*batch, n, m, d) of memory."""
    return (X[..., :, None, :] - Z[..., None, :, :]).square().sum(-1)


@in_full_precision
def _compute_by_products(X: Tensor, Z: Tensor | None) -> Tensor:
    centre = (X if Z is None else Z).mean(-2, keepdim=True)
    X = X - centre
    columns = X if Z is None else Z - centre
    of_rows = X.square().sum(-1, keepdim=True)
    of_columns = of_rows if Z is None else columns.square().sum(-1, keepdim=True)
    S = (X @ columns.mT).mul_(-2.0).add_(of_rows).add_(of_columns.mT)
    if not S.numel():
        return S
    largest = of_rows.amax((-2, -1), keepdim=True) + of_columns.amax((-2, -1), keepdim=True)
    rounding = _ROUNDINGS * torch.finfo(S.dtype).eps * largest
    S.mul_(S.gt(rounding))
    if Z is None:
        lower = S.tril_(-1)
        S = lower + lower.mT
    return S
