"""sumlogdiag: sum of the logarithms of a diagonal, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.torch.makediag import makediag


def sumlogdiag(s: Tensor, A: Tensor) -> None:
    """s := sum_i log |a_ii|."""
    s.copy_(A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1))


def sum_logs_and_squares(
    s: Tensor, L: Tensor, W: Tensor | None, constant: float, logs: float, squares: float
) -> None:
    """s := constant + logs * sum_i log |l_ii| + squares * |W|^2, without W the first two terms."""
    sumlogdiag(s, L)
    s.mul_(logs).add_(constant)
    if W is not None:
        s.add_(W.square().sum((-2, -1)), alpha=squares)


def sumlogdiag_vjp(gA: Tensor, A: Tensor, gs: Tensor) -> None:
    """gA := diag(gs / a_ii)."""
    makediag(gA, gs[..., None] / A.diagonal(dim1=-2, dim2=-1), 0)
