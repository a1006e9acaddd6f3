"""sumlogdiag: sum of the logarithms of a diagonal, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._fallback.makediag import makediag


def sumlogdiag(s: Tensor, A: Tensor) -> None:
    """s := sum_i log |a_ii|."""
    s.copy_(A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1))


def sumlogdiag_vjp(gA: Tensor, A: Tensor, gs: Tensor) -> None:
    """gA := diag(gs / a_ii)."""
    makediag(gA, gs[..., None] / A.diagonal(dim1=-2, dim2=-1), 0)
