"""Adds values to the diagonal of a matrix, with one buffer forward and none backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch.layout import broadcast_shapes
from lapgrad._torch.private import skips_dispatcher


def add_to_diagonal(K: Tensor, values: Tensor) -> Tensor:
    """Return K + diag(values), in a new buffer.

    Args:
        K: (*batch, n, n).
        values: A scalar, or (*batch, n); leading dimensions broadcast.

    Example:
        >>> add_to_diagonal(torch.ones(2, 2), torch.tensor([1.0, 2.0]))
        tensor([[2., 1.],
                [1., 3.]])
    """
    batch = broadcast_shapes(K.shape[:-2], values.shape[:-1])
    if not skips_dispatcher((K, values)):
        return K + torch.diag_embed(values.expand(*batch, K.shape[-1]))
    K = K.expand(*batch, *K.shape[-2:])
    if torch.is_grad_enabled() and (K.requires_grad or values.requires_grad):
        result: Tensor = _AddToDiagonal.apply(K, values)
        return result
    return _compute_sum(K, values)


class _AddToDiagonal(torch.autograd.Function):
    """The cotangent of K is that of the sum, the cotangent of the values is its diagonal."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, values: Tensor) -> Tensor:
        ctx.shape = values.shape
        return _compute_sum(K, values)

    @staticmethod
    def backward(ctx: Any, gA: Tensor) -> tuple[Tensor | None, Tensor | None]:
        g_values = None
        if ctx.needs_input_grad[1]:
            g_values = gA.diagonal(dim1=-2, dim2=-1).sum_to_size(ctx.shape)
        return gA if ctx.needs_input_grad[0] else None, g_values


def _compute_sum(K: Tensor, values: Tensor) -> Tensor:
    A = K.clone(memory_format=torch.contiguous_format)
    A.diagonal(dim1=-2, dim2=-1).add_(values)
    return A
