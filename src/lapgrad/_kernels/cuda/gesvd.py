"""gesvd: singular value decomposition, on CUDA.

Batches of matrices with sides up to 128 have kernels of their own. For one large matrix cuSOLVER's drivers
take ten times as long as eigenvalues of a symmetric matrix, which are used instead. The long side goes first:
A = L Q.

float32, in float64: L Lᵀ = Uᵀ Λ U, and U L = D V by a second LQ, in which D is diagonal up to eps64 |A|² / σ,
which is below eps32 |A| for every σ that float32 can tell from zero.

float64: the polar decomposition L = P H by QDWH (Nakatsukasa, Bai & Gygi 2010), then H = Wᵀ S W and U = W Pᵀ.
Six or seven steps of

    X := X (a I + b Xᵀ X) (I + c Xᵀ X)⁻¹

take every singular value between eps and 1 to 1. Where c is below 100 the inverse is a Cholesky one; before,
it would lose digits, and Q1 Q2ᵀ of the orthogonal factor [Q1, Q2] of [√c Xᵀ, I] stands in for it.

What is guaranteed: |U A Vᵀ - S|, |U Uᵀ - I| and |V Vᵀ - I| of order n eps, singular values to n eps |A|.
P is checked before it is used; where the check fails (a matrix of lower rank) cuSOLVER's driver does it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.large.lq import factorise_by_cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._kernels.cuda.small import gesvd_medium as _gesvd_medium
from lapgrad._kernels.cuda.small import gesvd_vjp_medium as _gesvd_vjp_medium
from lapgrad._kernels.torch import gesvd as _fallback

_MOST_STEPS = 9
_CHOLESKY_BELOW = 100.0
_NEARLY_ORTHOGONAL = 1e-6
_BEYOND_TWO_ROUNDS = 1e14  # the square of the condition


@on_its_device
def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    kernels = _gesvd_batch if _gesvd_batch.serves(A) else _gesvd_medium if _gesvd_medium.serves(A) else None
    if kernels is not None:
        failure = kernels.gesvd(S, U, V, A)
        # Rare, and torch's driver may still find an answer; what has none gets the same message from it.
        return None if failure is None else _fallback.gesvd(S, U, V, A)
    m, n = A.shape[-2:]
    large = min(m, n) >= _thresholds.POLAR_FROM and _thresholds.serves_items_one_by_one(
        A.shape[:-2].numel(), min(m, n)
    )
    large = large and _stream.has_fast_float64(A.get_device())
    if U is None or V is None or not large or _stream.is_capturing() or not bool(A.isfinite().all()):
        return _fallback.gesvd(S, U, V, A)
    flat = [X if X.dim() == dim else X.reshape(-1, *X.shape[1 - dim :]) for X, dim in ((A, 3), (S, 2))]
    results = []
    for item in flat[0] if A.dim() > 2 else (A,):
        found = _decompose(item if m <= n else item.mT)
        if found is None:
            return _fallback.gesvd(S, U, V, A)
        results.append(found if m <= n else (found[2], found[1], found[0]))
    for place, part in ((U, 0), (S, 1), (V, 2)):
        place.copy_(torch.stack([result[part] for result in results]).view(place.shape))
    signs = _gaps.find_row_signs(U)[..., None]
    U.mul_(signs)
    V.mul_(signs)
    return None


@on_its_device
def gesvd_vjp(
    gA: Tensor,
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Tensor | None:
    kernels = (
        _gesvd_batch
        if _gesvd_batch.serves_vjp(U, V)
        else _gesvd_vjp_medium
        if _gesvd_vjp_medium.serves(U, V)
        else _fallback
    )
    return kernels.gesvd_vjp(gA, U, S, V, gU, gS, gV, degeneracy, tol)


def _decompose(A: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (U, S, V) of a wide or square matrix in float64; None if only torch's driver is safe for it."""
    m, n = A.shape
    L, Q = A.to(torch.float64), None
    if m < n:
        factors = factorise_by_cholesky(A, None)
        if factors is None:
            return None
        L, Q = factors
    found = _decompose_by_gram(L) if A.dtype == torch.float32 else _decompose_by_polar(L)
    if found is None or Q is None:
        return found
    U, S, V = found
    return U, S, V @ Q


def _decompose_by_gram(L: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    _, columns = torch.linalg.eigh(L @ L.mT)
    U = columns.mT.flip(0)
    factors = factorise_by_cholesky(U @ L, None)
    if factors is None:
        return None
    D, V = factors
    S, order = D.diagonal().sort(descending=True)
    return U[order], S, V[order]


def _decompose_by_polar(L: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    P = _compute_polar_factor(L)
    if P is None:
        return None
    H = P.mT @ L
    S, columns = torch.linalg.eigh(0.5 * (H + H.mT))
    # A singular value of the size of rounding may come out negative: change its sign and that of its vector.
    W, S = columns.mT.flip(0), S.flip(0)
    U = (W @ P.mT) * torch.where(S < 0, -1.0, 1.0).to(S.dtype)[:, None]
    S, order = S.abs().sort(descending=True)
    return U[order], S, W[order]


def _compute_polar_factor(A: Tensor) -> Tensor | None:
    """The orthogonal P of A = P H; None when A is singular to working precision."""
    n = A.shape[0]
    eps = torch.finfo(A.dtype).eps
    identity = torch.eye(n, dtype=A.dtype, device=A.device)
    X = A / torch.linalg.matrix_norm(A)
    least = eps / math.sqrt(n)
    notes = torch.zeros(_MOST_STEPS, dtype=torch.int32, device=A.device)
    for step in range(_MOST_STEPS):
        if 1.0 - least < eps:
            break
        a, b, c, least = _choose_weights(least)
        if c > _CHOLESKY_BELOW:
            stacked = torch.cat([math.sqrt(c) * X.mT, identity], 1)
            factors = factorise_by_cholesky(stacked, None, ill_conditioned=c > _BEYOND_TWO_ROUNDS)
            if factors is None:
                return None
            left, right = factors[1].split(n, 1)
            X = torch.addmm(X, left.mT, right, beta=b / c, alpha=(a - b / c) / math.sqrt(c))
            continue
        R = torch.addmm(identity, X.mT, X, alpha=c)
        _cholesky.factorise_upper(R, notes.data_ptr() + 4 * step)
        inverse_part = X.clone()
        # X (Rᵀ R)⁻¹, R upper: its transpose is the lower triangle that is inverted.
        _device.solve(inverse_part, R.mT, "Rr", _thresholds.SOLVE_BLOCK)
        X = (b / c) * X + (a - b / c) * inverse_part
    excess = (X.mT @ X).sub_(identity)
    distance = torch.linalg.vector_norm(excess)
    failed, moved = torch.stack([notes.abs().sum().to(distance.dtype), distance]).tolist()
    if failed or not moved < _NEARLY_ORTHOGONAL:
        return None
    # One Newton step, X (I - (Xᵀ X - I) / 2), squares the rounding errors of the steps before.
    return torch.addmm(X, X, excess, alpha=-0.5)


def _choose_weights(least: float) -> tuple[float, float, float, float]:
    """QDWH's (a, b, c) for singular values from ``least`` to 1, and the least one after the step."""
    square = least * least
    d = (4.0 * (1.0 - square) / (square * square)) ** (1.0 / 3.0)
    root = math.sqrt(1.0 + d)
    a = root + 0.5 * math.sqrt(8.0 - 4.0 * d + 8.0 * (2.0 - square) / (square * root))
    b = 0.25 * (a - 1.0) ** 2
    c = a + b - 1.0
    return a, b, c, min(1.0, least * (a + b * square) / (1.0 + c * square))
