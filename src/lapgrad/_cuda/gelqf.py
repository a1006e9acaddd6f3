"""gelqf: LQ factorisation, on CUDA.

Householder's panels leave a GPU idle. Cholesky's way is all products: with A Aᵀ = L1 L1ᵀ, Q1 = L1⁻¹ A has orthonormal rows up
to eps cond(A)², and the same once more makes that eps: Q2 = L2⁻¹ Q1, L = L1 L2 (CholeskyQR2: Yamamoto et al. 2015). Where
cond(A) is too large for that, a first round with A Aᵀ + s I brings it down (shifted CholeskyQR3: Fukaya et al. 2020).

Whether a round went well is seen from the one after it: Q1 Q1ᵀ may differ from the identity by less than 1/2 in norm,
which is read back to the host once. When it did not go well, the next way is taken, the last one is Householder's.
The diagonal of L is positive, whichever way was gone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _cholesky, _sizes, _stream, _triangle
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of

_ITEMS = 8
_ORDER = 2 * _triangle.LEAF


@on_its_device
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    m, n = A.shape[-2:]
    rank = min(m, n)
    if rank < _ORDER or A.shape[:-2].numel() > _ITEMS or not _triangle.storable(L) or _stream.being_captured():
        return _fallback.gelqf(L, Q, A, positive)
    rows = A.new_empty(*A.shape[:-2], rank, n) if Q is None or not _triangle.storable(Q) else Q
    matrices, factors, orthogonal = items_of(A), items_of(L), items_of(rows)
    for item in range(matrices.shape[0]):
        if not _by_cholesky(factors[item, :rank], orthogonal[item], matrices[item, :rank]):
            return _fallback.gelqf(L, Q, A, True)
    if m > n:
        _blas.gemm(factors[:, rank:], items_of(_blas.readable(A))[:, rank:], orthogonal.mT)
    if Q is not None and rows is not Q:
        Q.copy_(rows)
    return None


def _by_cholesky(L: Tensor, Q: Tensor, A: Tensor) -> bool:
    """L, Q := the factors of one wide matrix; False when its condition is beyond both variants."""
    Q.copy_(A)
    first, code = _round(Q, 0.0)
    second, distance, late_code = _checked_round(Q)
    if _went_well(code, late_code, distance):
        _product(L, first, second)
        return True
    Q.copy_(A)
    zeroth, code = _round(Q, 11.0)
    first, early_code = _round(Q, 0.0)
    second, distance, late_code = _checked_round(Q)
    if not _went_well(code + early_code, late_code, distance):
        return False
    product = torch.empty_like(L)
    _product(product, zeroth, first)
    _blas.gemm(L, product, second.mT)
    return True


def _round(Q: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Q := R⁻ᵀ Q with Q Qᵀ + s I = Rᵀ R, s = shift (m n + m (m + 1)) eps |Q|². Returns R, upper, and LAPACK's code."""
    m, n = Q.shape
    R = _gram(Q)
    if shift:
        diagonal = R.diagonal()
        diagonal += shift * (m * n + m * (m + 1)) * torch.finfo(Q.dtype).eps * diagonal.sum()
    return R, _divided_by(Q, R)


def _checked_round(Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ``_round``; also |Q Qᵀ - I|, in the Frobenius norm, before it."""
    R = _gram(Q)
    # Of the upper triangle: 2 |R|² - |diag|² - 2 tr + m, with all terms near m cancelling would be rounding only.
    off = R - torch.eye(R.shape[0], dtype=R.dtype, device=R.device)
    distance = 2.0 * off.square().sum()
    return R, distance, _divided_by(Q, R)


def _gram(Q: Tensor) -> Tensor:
    """The upper triangle of Q Qᵀ, zeros below."""
    R = Q.new_zeros(Q.shape[0], Q.shape[0])
    _blas.syrk(R, Q, lower=False)
    return R


def _divided_by(Q: Tensor, R: Tensor) -> Tensor:
    """R := its Cholesky factor, Q := R⁻ᵀ Q. Returns LAPACK's code."""
    code = torch.zeros(1, dtype=torch.int32, device=Q.device)
    _cholesky.factorise_upper(R[None], code)
    factor, size = R.mT[None], _sizes.ORTHOGONALISE_BLOCK
    W = _triangle.inverted_blocks(factor, size)
    _triangle.solve_left(Q[None], factor, W, size, lower=True, refine=True)
    return code


def _went_well(code: Tensor, late_code: Tensor, distance: Tensor) -> bool:
    seen = torch.cat([code.to(distance.dtype), late_code.to(distance.dtype), distance[None]])
    early, late, moved = seen.tolist()
    return early == 0 and late == 0 and moved < 0.25


def _product(L: Tensor, first: Tensor, second: Tensor) -> None:
    """L := R1ᵀ R2ᵀ. Rounding leaves nothing above the diagonal: both have exact zeros there."""
    _blas.gemm(L, first.mT, second.mT)


@on_its_device
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA1 := L1^-T (gQ + Z Q), Z = copyltu(L1^T gL1 - gQ Q^T), for wide and square matrices."""
    rank = Q.shape[-2]
    if rank < _sizes.SOLVE_BY_BLOCKS_FROM or L.shape[-2] > rank or Q.shape[:-2].numel() > _ITEMS:
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    if not _triangle.storable(gA):
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    factor, rows, target = items_of(_blas.readable(L)), items_of(_blas.readable(Q)), items_of(gA)
    Z = L.new_empty(factor.shape)
    if gL is not None:
        # Its lower triangle asks for none of gL's upper one.
        _blas.gemm(Z, factor.mT, items_of(_blas.readable(gL)))
    if gQ is not None:
        cotangent = items_of(_blas.readable(gQ))
        _triangle.lower_product(Z, cotangent, rows.mT, -1.0, 0.0 if gL is None else 1.0, cut=512)
        target.copy_(cotangent)
    _triangle.reshape(Z, _triangle.MIRROR_UP)
    _blas.gemm(target, Z, rows, beta=0.0 if gQ is None else 1.0)
    size = _sizes.SOLVE_BLOCK
    W = _triangle.inverted_blocks(factor, size)
    _triangle.solve_left(target, factor.mT, W.mT, size, lower=False)
