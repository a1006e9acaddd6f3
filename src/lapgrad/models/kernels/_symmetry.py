"""Makes matrices that are symmetric up to rounding exactly symmetric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch.private import skips_dispatcher


def mirror_lower_triangle(K: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """Return K (*batch, n, n) with its lower triangle copied to the upper one.

    The gradient is passed on unchanged, because K changes by rounding errors only.

    Args:
        K: Symmetric up to rounding.
        diagonal: The exact value of all of the diagonal, a scalar or (*batch, 1, 1), which K has up to
            rounding; None: the diagonal stays.
    """
    if not skips_dispatcher((K, diagonal)):
        return K.tril() + K.tril(-1).mT
    if torch.is_grad_enabled() and K.requires_grad:
        result: Tensor = _MirroredMatrix.apply(K, None if diagonal is None else diagonal.detach())
        return result
    return _mirror(K, diagonal)


class _MirroredMatrix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, diagonal: Tensor | None) -> Tensor:
        return _mirror(K, diagonal)

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> tuple[Tensor, None]:
        return gK, None


def _mirror(K: Tensor, diagonal: Tensor | None) -> Tensor:
    S = K.tril(-1)
    S = S + S.mT
    kept = K.diagonal(dim1=-2, dim2=-1) if diagonal is None else diagonal
    kept = kept.squeeze(-1) if diagonal is not None and diagonal.dim() else kept
    S.diagonal(dim1=-2, dim2=-1).copy_(kept)
    return S
