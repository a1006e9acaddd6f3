"""sgp_bound: the bound of a sparse Gaussian process from U x U matrices, in plain PyTorch.

With M = I + W / v = Lm Lm^T, c = Lm^-1 b and a = M^-1 b / v, tr(a^T b) = |c|^2 / v.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_2_PI = math.log(2.0 * math.pi)


def sgp_bound(
    out: Tensor, W: Tensor, squares: Tensor, Lm: Tensor, c: Tensor, variances: Tensor, v: Tensor, n: int
) -> None:
    """out (3,) := the bound, |Y|^2 - tr(a^T b), and tr K_ff - tr W.

    The bound is 1/2v (|Y|^2 - tr(a^T b)) + k/2 (n log(2 pi v) + log det M + (tr K_ff - tr W) / v), with
    ``squares`` (k,) or (1,) for |Y|^2, ``variances`` () for tr K_ff, and c (U, k).
    """
    k = c.shape[1]
    left = squares.sum() - c.square().sum() / v
    unexplained = variances - W.diagonal().sum()
    logs = Lm.diagonal().log().sum()
    value = 0.5 * ((left + k * unexplained) / v + k * (n * (v.log() + _LOG_2_PI) + 2.0 * logs))
    torch.stack([value, left, unexplained], out=out)


def sgp_bound_vjp(
    out: Tensor,
    bound: Tensor,
    inverse: Tensor,
    a: Tensor,
    g: Tensor,
    pivots: Tensor,
    are_reciprocal: bool,
    norm: Tensor,
    v: Tensor,
    n: int,
    roundings: float,
) -> None:
    """out (2,) := the gradient of the bound for v, and a bound of rounding errors. ``inverse`` -= I.

    The gradient is 1/2v (|a|^2 - (bound_1 + k bound_2) / v + k (n - tr(I - M^-1))), where ``inverse`` is
    M^-1. The last trace counts the directions that the data determine. ``bound`` is that of ``sgp_bound``.

    The second number is roundings |K|^2 (k / (v p^2) + v |g|^2). There p is the smallest of the ``pivots`` of
    K_uu's factor, or the reciprocal of the largest one if they ``are_reciprocal``, and ``norm`` is |K|.
    """
    k, U = a.shape[1], len(inverse)
    trace = inverse.diagonal().sum()
    inverse.diagonal().sub_(1.0)
    of_noise = 0.5 / v * (a.square().sum() - (bound[1] + k * bound[2]) / v + k * (n - U + trace))
    size = v * g.square().sum()
    if U:
        size += k / v * (pivots.max() if are_reciprocal else pivots.min().reciprocal()).square()
    torch.stack([of_noise, roundings * norm.square() * size], out=out)
