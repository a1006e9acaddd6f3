"""The matrix variance · exp(-|f - g|² / 2) between two sets of points, as one function.

The exponents, -|f|²/2 - |g|²/2 + fᵀg + log(variance), are one product of points with two additional columns,
and the exponential is taken in place. With H = gK ∘ K the backward needs nothing but products with H:

    gF = H G - diag(H 1) F,   gG = Hᵀ F - diag(Hᵀ 1) G,   g variance = 1ᵀ H 1 / variance
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._torch.private import skips_dispatcher
from lapgrad._torch.synchronisation import may_read

#: The rounding error of an exponent is eps times the largest squared norm. With float64, and points nearer to
#: their centre than this many lengthscales, the matrix is right to ten digits.
_FARTHEST = 300.0

#: Entries of a block of H: one megabyte fits into the cache of a CPU; a GPU needs more to be busy.
_BLOCK = {"cpu": 1 << 17}
_BLOCK_ELSEWHERE = 1 << 22


def is_precise(F: Tensor, G: Tensor, variance: Tensor, *, are_near: bool = False) -> bool:
    """Return whether ``compute_gaussian`` is precise enough, and no transform of PyTorch is active.

    Args:
        F, G, variance: Arguments of ``compute_gaussian``.
        are_near: The points are known to be near each other. Else they are checked, which waits for a GPU;
            where waiting is not allowed, the answer is no.
    """
    if F.dtype is not torch.float64 or not skips_dispatcher((F, G, variance)):
        return False
    if not (F.numel() and G.numel()):
        return False
    return are_near or (may_read(F) and bool(are_points_near(F, G, _FARTHEST)))


@torch.no_grad()
def are_points_near(F: Tensor, G: Tensor, farthest: float = _FARTHEST / 2) -> Tensor:
    """Return, as a scalar on the device, whether no coordinate is ``farthest`` or more from the mean of G.

    With the default, no coordinate is ``_FARTHEST`` or more from the mean of any subset of G either.
    """
    if not (F.numel() and G.numel()):
        return torch.zeros((), dtype=torch.bool, device=F.device)
    centre = _compute_centre(G)
    return torch.maximum((F - centre).abs().max(), (G - centre).abs().max()) < farthest  # False for NaN


def compute_gaussian(F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
    """Return K (*batch, n, m) of F (*batch, n, d), G (*batch, m, d) and a variance, () or (*batch, 1, 1)."""
    if torch.is_grad_enabled() and (F.requires_grad or G.requires_grad or variance.requires_grad):
        result: Tensor = _Gaussian.apply(F, G, variance)
        return result
    return _compute_matrix(F, G, variance)


def _compute_centre(G: Tensor) -> Tensor:
    """Return the mean of G: distances do not change when it is subtracted, but rounding errors decrease."""
    return G.detach().mean(-2, keepdim=True)


def _compute_matrix(F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
    centre = _compute_centre(G)
    F, G = F - centre, G - centre
    of_rows = F.square().sum(-1, keepdim=True).mul_(-0.5)
    of_columns = G.square().sum(-1, keepdim=True).mul_(-0.5).add_(variance.log())
    left = torch.cat([F, of_rows, torch.ones_like(of_rows)], -1)
    right = torch.cat([G, torch.ones_like(of_columns), of_columns], -1)
    return (left @ right.mT).exp_()


class _Gaussian(torch.autograd.Function):
    """The backward uses differentiable operations of F, G, K and gK, so that it can be differentiated."""

    @staticmethod
    def forward(ctx: Any, F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
        K = _compute_matrix(F, G, variance)
        ctx.save_for_backward(F, G, variance, K)
        return K

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        F, G, variance, K = ctx.saved_tensors
        needs_F, needs_G, needs_variance = ctx.needs_input_grad
        centre = _compute_centre(G)
        rows, columns = F - centre, G - centre
        # Blocks write into buffers, which autograd cannot record, and have no batch dimension.
        moments = _compute_moments if torch.is_grad_enabled() or K.dim() > 2 else _compute_moments_in_blocks
        of_rows, of_columns = moments(gK, K, _append_ones(rows), _append_ones(columns), needs_G)
        gF = (of_rows[..., :-1] - of_rows[..., -1:] * rows).sum_to_size(F.shape) if needs_F else None
        gG = None
        if of_columns is not None:
            gG = (of_columns[..., :-1] - of_columns[..., -1:] * columns).sum_to_size(G.shape)
        return gF, gG, of_rows[..., -1:].sum_to_size(variance.shape) / variance if needs_variance else None


def _append_ones(F: Tensor) -> Tensor:
    return torch.cat([F, torch.ones_like(F[..., :1])], -1)


def _compute_moments(
    gK: Tensor, K: Tensor, F: Tensor, G: Tensor, columns: bool
) -> tuple[Tensor, Tensor | None]:
    """Return H G, and Hᵀ F if ``columns``."""
    H = gK * K
    return H @ G, H.mT @ F if columns else None


def _compute_moments_in_blocks(
    gK: Tensor, K: Tensor, F: Tensor, G: Tensor, columns: bool
) -> tuple[Tensor, Tensor | None]:
    """Return H G, and Hᵀ F if ``columns``, by blocks of rows of H that stay in the cache."""
    n, m = K.shape
    size = max(1, min(n, _BLOCK.get(K.device.type, _BLOCK_ELSEWHERE) // max(1, m)))
    block = K.new_empty(size, m)
    of_rows, of_columns = torch.empty_like(F), torch.zeros_like(G) if columns else None
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        H = torch.mul(gK[rows], K[rows], out=block[: rows.stop - start])
        torch.mm(H, G, out=of_rows[rows])
        if of_columns is not None:
            of_columns.addmm_(H.mT, F[rows])
    return of_rows, of_columns
