"""gesvd: singular value decomposition, on CUDA.

Batches of matrices with sides up to 128 have kernels of their own. For others cuSOLVER's SVD takes ten times
as long as its symmetric eigenvalues, so these are used instead. ``_decompose_batch`` serves middle sizes,
``_decompose`` one large matrix. There the long side goes first: A = L Q.

float32, in float64: L Lᵀ = Uᵀ Λ U, and U L = D V by a second LQ, in which D is diagonal up to eps64 |A|² / σ,
which is below eps32 |A| for every σ that float32 can tell from zero.

float64: the polar decomposition L = P H by QDWH (Nakatsukasa, Bai & Gygi 2010), then H = Wᵀ S W and U = W Pᵀ.
Six or seven steps of

    X := X (a I + b Xᵀ X) (I + c Xᵀ X)⁻¹

take every singular value between eps and 1 to 1. Where c is below 100 the inverse is a Cholesky one; before,
it would lose digits, and Q1 Q2ᵀ of the orthogonal factor [Q1, Q2] of [√c Xᵀ, I] stands in for it.

What is guaranteed: |U A Vᵀ - S|, |U Uᵀ - I| and |V Vᵀ - I| of order n eps, singular values to n eps |A|.
P is checked before it is used; where the check fails (a matrix of lower rank) cuSOLVER's SVD is used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._formulas import gaps as _gaps
from lapgrad._formulas.gesvd import NOT_CONVERGED, NOT_FINITE
from lapgrad._kernels.cuda import gelqf as _gelqf
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.large import polar as _polar
from lapgrad._kernels.cuda.large import symmetric as _symmetric
from lapgrad._kernels.cuda.large.lq import factorise_by_cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.items import flatten_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._kernels.cuda.small import gesvd_medium as _gesvd_medium
from lapgrad._kernels.cuda.small import gesvd_vjp_tiles as _gesvd_vjp_tiles
from lapgrad._kernels.cuda.small.gesvd import make_contiguous
from lapgrad._kernels.cuda.small.ties import note_distinct
from lapgrad._kernels.torch import gesvd as _fallback
from lapgrad._torch.precision import in_full_precision
from lapgrad._torch.synchronisation import may_read

_MOST_STEPS = 9
_CHOLESKY_BELOW = 100.0
_NEARLY_ORTHOGONAL = 1e-6
_BEYOND_TWO_ROUNDS = 1e14  # the square of the condition


@on_its_device
def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    compute = _decompose_by_lq if _is_longer(A) else _decompose_any
    failure = compute(S, U, V, A)
    if failure is None and U is not None and A.requires_grad and S.is_contiguous():
        note_distinct(S)
    return failure


def _is_longer(A: Tensor) -> bool:
    """Whether one matrix goes through an LQ factorisation first."""
    short, long = sorted(A.shape[-2:])
    most = max(_thresholds.GESVD_LQ_ALONE * short, _thresholds.GESVD_SMALL)
    if A.shape[-2] == long and short < _thresholds.GESVD_LQ_TALL:
        most = _thresholds.GELQF_PANEL_COLUMNS  # signs of the long vectors take several launches
    return 0 < short <= _thresholds.GELQF_SMALL and long > most and A.shape[:-2].numel() == 1


@in_full_precision
def _decompose_by_lq(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """``gesvd`` of one long matrix: A = L Q, L = U^T S W, V = W Q. A tall matrix is transposed."""
    m, n = A.shape[-2:]
    source = A.detach() if m <= n else A.detach().mT
    k = min(m, n)
    vectors = U is not None and V is not None
    L = torch.empty((*A.shape[:-2], k, k), dtype=A.dtype, device=A.device)
    Q = torch.empty((*A.shape[:-2], k, max(m, n)), dtype=A.dtype, device=A.device) if vectors else None
    if _gelqf.gelqf(L, Q, source, True) is not None:
        return 0, NOT_FINITE
    if U is None or V is None or Q is None:
        return _decompose_any(S, None, None, L)
    short, long = (U, V) if m <= n else (V, U)
    W = torch.empty_like(L)
    failure = _decompose_any(S, short, W, L)
    if failure is not None:
        return failure
    torch.matmul(W, Q, out=long)
    if m > n:
        signs = _gaps.find_row_signs(U)[..., None]
        U.mul_(signs)
        V.mul_(signs)
    return None


def _decompose_any(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """``gesvd`` by the algorithm for the size of A."""
    kernels = _gesvd_batch if _gesvd_batch.serves(A) else _gesvd_medium if _gesvd_medium.serves(A) else None
    if kernels is not None:
        failure = kernels.gesvd(S, U, V, A)
        # Rare: torch's driver may still succeed, and otherwise reports the same failure.
        return None if failure is None else _fallback.gesvd(S, U, V, A)
    if _serves_batch(A):
        return _decompose_batch(S, U, V, A)
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
        else _gesvd_vjp_tiles
        if _gesvd_vjp_tiles.serves(U, V)
        else _fallback
    )
    return kernels.gesvd_vjp(gA, U, S, V, gU, gS, gV, degeneracy, tol)


def _serves_batch(A: Tensor) -> bool:
    """Whether ``_decompose_batch`` takes these matrices: middle sizes, and batches of larger ones."""
    k, items = min(A.shape[-2:]), A.shape[:-2].numel()
    if not (_thresholds.GESVD_BATCHED_FROM <= k <= _thresholds.GESVD_BATCHED_MOST and items):
        return False
    if A.dtype == torch.float32:
        # One matrix is decomposed faster by way of its Gram matrix in float64, where that is fast.
        alone = items == 1 and k >= _thresholds.POLAR_FROM
        return not (alone and _stream.has_fast_float64(A.get_device()))
    return _stream.has_fast_float64(A.get_device())


@in_full_precision
def _decompose_batch(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """``gesvd`` by polar decompositions, A = H P, and eigenvalues of the symmetric factors, H = Wᵀ diag(l) W.

    S = |l|, and the vectors are W and sign(l) W P. A tall matrix is transposed. Parts of a large batch follow
    one after another. The host waits once, for the check at the end.
    """
    source = flatten_batch(A)
    items, m, n = source.shape
    values = make_contiguous(S).view(items, -1)
    left = right = None
    if U is not None and V is not None:
        left, right = (flatten_batch(make_contiguous(X)) for X in (U, V))
    codes = torch.empty(items, dtype=torch.int32, device=A.device)
    one = 4 * min(m, n) * (min(m, n) + max(m, n)) * A.element_size()
    together = max(1, _thresholds.GESVD_BATCHED_WORKSPACE // one)
    for begin in range(0, items, together):
        part = slice(begin, begin + together)
        vectors = None if left is None or right is None else (left[part], right[part])
        codes[part] = _decompose_part(values[part], vectors, source[part])
    for target, filled in ((S, values), (U, left), (V, right)):
        if target is not None and filled is not None and target.data_ptr() != filled.data_ptr():
            target.copy_(filled.view(target.shape))
    if not may_read(A) or not bool(codes.any()):
        return None
    return _repair(S, U, V, A, codes.cpu())


def _decompose_part(values: Tensor, vectors: tuple[Tensor, Tensor] | None, A: Tensor) -> Tensor:
    """Fill values (items, k) and vectors (U, V); return an int32 per item: 0, or the code of a failure."""
    tall = A.shape[-2] > A.shape[-1]
    largest = torch.linalg.vector_norm(A, math.inf, dim=(-2, -1))
    finite = largest.isfinite()
    scale = largest.masked_fill(~finite | (largest == 0), 1.0)
    L = torch.where(finite[:, None, None], A.mT if tall else A, 0.0) / scale[:, None, None]
    Q = None
    items, k, n = L.shape
    if n >= _thresholds.GESVD_LQ_FROM * k:
        Q, L = L, L.new_empty((items, k, k))
        _gelqf.gelqf(L, Q, Q.clone(), True)
    P = _polar.compute_polar_factor(L)
    H = torch.bmm(L, P.mT)
    H = H.add_(H.mT.clone()).mul_(0.5)
    found, status = torch.empty_like(values), torch.empty(items, dtype=torch.int32, device=A.device)
    _symmetric.decompose_batch(found, H, status, vectors=vectors is not None)
    # A singular value of the size of rounding may come out negative: its sign moves to a vector.
    sizes, order = found.abs().sort(-1, descending=True)
    torch.mul(sizes, scale[:, None], out=values)
    if vectors is not None:
        W = H.gather(1, order[..., None].expand(H.shape))
        other = torch.bmm(W, P)
        if Q is not None:
            other = torch.bmm(other, Q)
        negative = found.gather(1, order) < 0
        other.mul_(torch.where(negative, -1.0, 1.0).to(other.dtype)[..., None])
        signs = _gaps.find_row_signs(other if tall else W)[..., None]
        short, long = reversed(vectors) if tall else vectors
        torch.mul(W, signs, out=short)
        torch.mul(other, signs, out=long)
    good = (status == 0) & _polar.is_orthogonal(P) & sizes.isfinite().all(-1)
    return torch.where(finite, torch.where(good, 0, NOT_CONVERGED), NOT_FINITE)


def _repair(
    S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor, codes: Tensor
) -> tuple[int, int] | None:
    """Decompose the items with code ``NOT_CONVERGED`` by torch's driver; return the first failure.

    An item that is not finite is a failure; then nothing is computed.
    """
    spoilt = (codes == NOT_FINITE).nonzero()
    if len(spoilt):
        return int(spoilt[0]), NOT_FINITE
    for item in codes.nonzero().flatten().tolist():
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(item), A.shape[:-2]))
        own = [None if X is None else X[place] for X in (S, U, V)]
        assert own[0] is not None
        failure = _fallback.gesvd(own[0], own[1], own[2], A[place])
        if failure is not None:
            return item, failure[1]
    return None


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
    """Return the orthogonal P of A = P H; None when A is singular to working precision."""
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
