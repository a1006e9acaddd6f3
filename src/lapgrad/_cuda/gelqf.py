"""gelqf: LQ factorisation, on CUDA.

Householder's panels leave a GPU idle. Cholesky's way is all products: with A Aᵀ = L1 L1ᵀ, Q1 = L1⁻¹ A has
orthonormal rows up to eps cond(A)², and the same once more makes that eps: Q2 = L2⁻¹ Q1, L = L1 L2
(CholeskyQR2: Yamamoto et al. 2015). Where cond(A) is too large for that, a first round with A Aᵀ + s I brings it
down (shifted CholeskyQR3: Fukaya et al. 2020). float32 is done in float64, where products are no slower on the
devices this is for, and two rounds do for every condition that float32 can hold.

Whether a round went well is seen from the one after it: Q1 Q1ᵀ may differ from the identity by less than 1/2 in
norm, which is read back to the host once. When it did not go well, the next way is taken, the last one is
Householder's. The diagonal of L is positive, whichever way was gone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _cholesky, _sizes, _stream, _triangle
from lapgrad._cuda._blas import Blas
from lapgrad._cuda._block import block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import InvertedBlocks, items_of

#: Fukaya et al.: the shift, in units of (m n + m (m + 1)) eps |A|².
_SHIFT = 11.0


@on_its_device
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    m, n = A.shape[-2:]
    rank, items = min(m, n), A.shape[:-2].numel()
    serves = rank >= 2 * _triangle.LEAF and _sizes.one_by_one(items, rank)
    if not serves or _stream.being_captured() or not (Q is None or _triangle.storable(Q)):
        return _fallback.gelqf(L, Q, A, positive)
    matrices, factors = items_of(A), items_of(L)
    rows = None if Q is None else items_of(Q)
    for item in range(items):
        found = _by_cholesky(matrices[item, :rank], None if rows is None else rows[item])
        if found is None:
            return _fallback.gelqf(L, Q, A, True)
        factor, orthogonal = found
        factors[item, :rank] = factor
        if rows is not None and rows.dtype != orthogonal.dtype:
            rows[item] = orthogonal
        if m > n:
            factors[item, rank:] = matrices[item, rank:].to(orthogonal.dtype) @ orthogonal.mT
    return None


def _by_cholesky(A: Tensor, place: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(L, Q) of one wide matrix, in float64; None when its condition is beyond both variants.

    Q takes the place given, if that is of float64.
    """
    Q = torch.empty(A.shape, dtype=torch.float64, device=A.device)
    if place is not None and place.dtype == torch.float64:
        Q = place
    Q.copy_(A)
    blas = _blas.on(Q)
    notes = torch.zeros(8, dtype=torch.int32, device=Q.device)
    first = _gram(blas, Q)
    _divide(blas, Q, first, notes.data_ptr())
    second = _gram(blas, Q)
    distance = _distance_from_identity(second)
    _divide(blas, Q, second, notes.data_ptr() + 4)
    if _went_well(notes, distance):
        return _product(blas, first.mT, second.mT), Q
    Q.copy_(A)
    notes.zero_()
    zeroth = _gram(blas, Q)
    diagonal, (m, n) = zeroth.diagonal(), A.shape
    diagonal += _SHIFT * (m * n + m * (m + 1)) * torch.finfo(Q.dtype).eps * diagonal.sum()
    _divide(blas, Q, zeroth, notes.data_ptr())
    first = _gram(blas, Q)
    _divide(blas, Q, first, notes.data_ptr() + 4)
    second = _gram(blas, Q)
    distance = _distance_from_identity(second)
    _divide(blas, Q, second, notes.data_ptr() + 8)
    if not _went_well(notes, distance):
        return None
    return _product(blas, _product(blas, zeroth.mT, first.mT), second.mT), Q


def _gram(blas: Blas, Q: Tensor) -> Tensor:
    """The upper triangle of Q Qᵀ, zeros below."""
    R = Q.new_zeros(Q.shape[0], Q.shape[0])
    blas.syrk(block_of(R), block_of(Q), lower=False)
    return R


def _distance_from_identity(gram: Tensor) -> Tensor:
    """An upper bound of |G - I|² in the Frobenius norm, from the upper triangle of G."""
    identity = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    return 2.0 * (gram - identity).square().sum()


def _divide(blas: Blas, Q: Tensor, R: Tensor, code: int) -> None:
    """R := the factor of its upper triangle, Rᵀ R, and Q := R⁻ᵀ Q. At ``code`` LAPACK leaves its own."""
    gram = block_of(R)
    _cholesky.factorise_upper(Q, gram, code)
    inverted = InvertedBlocks(blas, Q, gram.mT, _sizes.ORTHOGONALISE_BLOCK)
    _triangle.solve_left(blas, Q, block_of(Q), gram.mT, inverted, lower=True, refine=True)


def _went_well(notes: Tensor, distance: Tensor) -> bool:
    *codes, moved = torch.cat([notes.to(distance.dtype), distance[None]]).tolist()
    return not any(codes) and moved < 0.25


def _product(blas: Blas, first: Tensor, second: Tensor) -> Tensor:
    """The product of two lower triangles: with exact zeros above, it has them too."""
    product = first.new_empty(first.shape)
    blas.gemm(block_of(product), block_of(first), block_of(second))
    return product


@on_its_device
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA := L^-T (gQ + Z Q), Z = copyltu(L^T gL - gQ Q^T), for wide and square matrices."""
    rank, items = Q.shape[-2], Q.shape[:-2].numel()
    wide = L.shape[-2] == rank and _sizes.solves_by_blocks(rank, Q.shape[-1])
    if not wide or not _sizes.one_by_one(items, rank) or not _triangle.storable(gA):
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    blas, middle = _blas.on(L), L.new_empty(items, rank, rank)
    factor, rows = block_of(items_of(_blas.readable(L))), block_of(items_of(_blas.readable(Q)))
    target, Z = block_of(items_of(gA)), block_of(middle)
    if gL is not None:
        # Its lower triangle asks for none of gL's upper one.
        blas.gemm(Z, factor.mT, block_of(items_of(_blas.readable(gL))))
    if gQ is not None:
        cotangent = block_of(items_of(_blas.readable(gQ)))
        _triangle.triangular_product(
            blas, Z, cotangent, rows.mT, lower=True, alpha=-1.0, beta=0.0 if gL is None else 1.0, cut=512
        )
        gA.copy_(gQ)
    _triangle.reshape(L, Z, _triangle.MIRROR_UP)
    blas.gemm(target, Z, rows, 1.0, 0.0 if gQ is None else 1.0)
    inverted = InvertedBlocks(blas, L, factor, _sizes.SOLVE_BLOCK)
    _triangle.solve_left(blas, L, target, factor.mT, inverted, lower=False, transposed=True)
