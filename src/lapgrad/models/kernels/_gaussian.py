"""The matrix variance · exp(-|f - g|² / 2) between two sets of points, as one function.

The exponents, -|f|²/2 - |g|²/2 + fᵀg + log(variance), are one product of points with two columns more, and
the exponential is taken in place. With H = gK ∘ K everything backward needs is a product with H:

    gF = H G - diag(H 1) F,   gG = Hᵀ F - diag(Hᵀ 1) G,   g variance = 1ᵀ H 1 / variance
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor

from lapgrad._torch import synchronisation as _waiting
from lapgrad._torch.private import skips_dispatcher

#: Exponents are rounded to eps of the largest squared norm: with float64, and points not farther from their
#: centre than this many lengthscales, the matrix is right to ten digits.
_FARTHEST = 300.0

#: Entries of a block of H: a megabyte on a CPU; elsewhere enough to fill a GPU.
_BLOCK = {"cpu": 1 << 17}
_BLOCK_ELSEWHERE = 1 << 22


#: Kernels whose points are taken to be near each other, per thread.
_assumed = threading.local()


def suits(kernel: object, F: Tensor, G: Tensor, variance: Tensor) -> bool:
    """Whether products of the points are precise enough, and the call is a plain eager one."""
    if F.dtype is not torch.float64 or not skips_dispatcher((F, G, variance)):
        return False
    if not (F.numel() and G.numel()):
        return False
    if kernel in assumptions():
        return True
    return _waiting.may_read(F) and bool(near(F, G, _FARTHEST))


@torch.no_grad()
def near(F: Tensor, G: Tensor, farthest: float = _FARTHEST / 2) -> Tensor:
    """Whether no point is that far from the centre. By default: nor from the centre of any part of G."""
    if not (F.numel() and G.numel()):
        return torch.zeros((), dtype=torch.bool, device=F.device)
    centre = _centre(G)
    return torch.maximum((F - centre).abs().max(), (G - centre).abs().max()) < farthest  # false for NaN


def assumptions() -> Set[object]:
    """The kernels whose points are taken to be near each other, in this thread."""
    kernels: Set[object] = getattr(_assumed, "kernels", frozenset())
    return kernels


@contextlib.contextmanager
def assumed(kernels: Set[object]) -> Iterator[None]:
    """The points of these kernels are near each other: nobody looks at them."""
    before = assumptions()
    _assumed.kernels = before | kernels
    try:
        yield
    finally:
        _assumed.kernels = before


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
        rows, columns = F - centre, G - centre
        # With gradients on, the backward is to be differentiated itself; so are batches: H at once.
        moments = _moments if torch.is_grad_enabled() or K.dim() > 2 else _moments_in_blocks
        of_rows, of_columns = moments(gK, K, _with_ones(rows), _with_ones(columns), needs_G)
        gF = (of_rows[..., :-1] - of_rows[..., -1:] * rows).sum_to_size(F.shape) if needs_F else None
        gG = None
        if of_columns is not None:
            gG = (of_columns[..., :-1] - of_columns[..., -1:] * columns).sum_to_size(G.shape)
        return gF, gG, of_rows[..., -1].sum() / variance if needs_variance else None


def _with_ones(F: Tensor) -> Tensor:
    return torch.cat([F, torch.ones_like(F[..., :1])], -1)


def _moments(gK: Tensor, K: Tensor, F: Tensor, G: Tensor, columns: bool) -> tuple[Tensor, Tensor | None]:
    """H G, and Hᵀ F if ``columns``."""
    H = gK * K
    return H @ G, H.mT @ F if columns else None


def _moments_in_blocks(
    gK: Tensor, K: Tensor, F: Tensor, G: Tensor, columns: bool
) -> tuple[Tensor, Tensor | None]:
    """The same, by blocks of rows of H that stay in the cache: no buffer of the size of K."""
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
