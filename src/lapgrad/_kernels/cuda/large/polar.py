"""Polar decompositions of batches, A = H P with orthonormal rows in P, by matrix products alone.

    X := (a I + b X Xᵀ + c (X Xᵀ)²) X

changes every singular value s to p(s) = a s + b s³ + c s⁵ and leaves the vectors as they are. First p
multiplies small values by 3.8 and keeps the others between 0.4 and 1. When all are there,
p(s) = (15 s - 10 s³ + 3 s⁵) / 8 takes them to 1, the error e to 5/2 e³.

Rounding in a step is a change of X by eps. It changes P as a change of A by eps s₀ / s does, where s₀ is what
a singular value s of X was at the start. So H = A Pᵀ is symmetric up to a few eps |A| per step as long as no
value is made much smaller than it was (Nakatsukasa & Higham 2012): this is why 0.4 is the least value.
Polynomials that grow faster let large values come down to almost 0 in between.

Singular values that are 0 would stay 0. A fixed matrix of pseudo-random numbers, eps as large as A, is added
before the first step: it makes them large enough, and it changes A by no more than rounding does. The number
of steps does not depend on the matrix, so the host waits for nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import device as _device

#: a, b and c for growing: p(1) = 1, a maximum of 1 at 0.41 and a minimum of 0.4 at 0.83.
GROW = (3.82547952, -9.34420428, 6.51872476)
LEAST = 0.4

#: p grows fast beyond 1. Values are scaled down by this factor, so that rounding does not push one beyond 1.
_MARGIN = 1.01

FINISH = (15.0 / 8.0, -10.0 / 8.0, 3.0 / 8.0)
#: 0.4 -> 0.67 -> 0.93 -> 1 - 7e-4 -> 1 - 9e-10 -> 1 up to rounding.
FINISHING_STEPS = 5

#: The matrix that is added, in units of eps |A|.
_ADDED = 1.0

#: A zero singular value becomes about this part of it, divided by the number of rows; less for one matrix in
#: some thousands.
_LUCK = 1.0 / 600.0

#: The distance from orthonormal rows that counts as rounding, in units of (8 + k) eps.
_ALLOWED = 8.0

#: Factors and shifts of splitmix64 (Steele, Lea & Flood 2014).
_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def compute_polar_factor(A: Tensor) -> Tensor:
    """P of A = H P, (items, k, n) with k <= n. A is finite, and its entries are not beyond 1."""
    k, n = A.shape[-2:]
    size = torch.linalg.matrix_norm(A)[..., None, None]
    X = (A / size.masked_fill_(size == 0, 1.0)).contiguous()
    X += draw_numbers(k, n, X) * (_ADDED * torch.finfo(A.dtype).eps / (math.sqrt(k) + math.sqrt(n)))
    G, middle, target = X.new_empty((len(X), k, k)), X.new_empty((len(X), k, k)), torch.empty_like(X)
    a, b, c = (factor / _MARGIN**power for factor, power in zip(GROW, (1, 3, 5), strict=True))
    steps = [(a, b, c)] * count_growing_steps(k, A.dtype) + [FINISH] * FINISHING_STEPS
    return _device.iterate_polar(X, target, G, middle, steps)


def is_orthogonal(P: Tensor) -> Tensor:
    """Whether the rows of P are orthonormal up to rounding, bool (items,).

    |P Pᵀ - I| in the Frobenius norm is below k eps after the last step, far above if a value was too small.
    """
    G = torch.bmm(P, P.mT)
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    diagonal -= 1.0
    return torch.linalg.matrix_norm(G) < _ALLOWED * (8 + P.shape[-2]) * torch.finfo(P.dtype).eps


def count_growing_steps(k: int, dtype: torch.dtype) -> int:
    """Return how many steps raise the least singular value of k rows, that of the added matrix, to 0.4."""
    start = _ADDED * torch.finfo(dtype).eps * _LUCK / k
    return math.ceil(math.log(LEAST / start) / math.log(GROW[0] / _MARGIN))


def draw_numbers(k: int, n: int, like: Tensor) -> Tensor:
    """(k, n) pseudo-random numbers between -1 and 1, always the same.

    No generator of torch is used: it could not be while a graph is captured, and users own the default one.
    """
    h = torch.arange(1, k * n + 1, device=like.device).mul_(_GOLDEN)
    h = (h ^ (h >> 30)).mul_(_FIRST)
    h = (h ^ (h >> 27)).mul_(_SECOND)
    # Shifts repeat the sign, so the last step makes it positive.
    return (h ^ (h >> 31)).to(like.dtype).mul_(2.0**-62).sub_(1.0).view(k, n)
