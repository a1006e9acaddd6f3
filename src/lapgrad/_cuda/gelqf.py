"""gelqf: LQ factorisation, on CUDA.

Householder's panels leave a GPU idle. Cholesky's way is all products: with A Aᵀ = L1 L1ᵀ, Q1 = L1⁻¹ A has
orthonormal rows up to eps cond(A)², and the same once more makes that eps: Q2 = L2⁻¹ Q1, L = L1 L2
(CholeskyQR2: Yamamoto et al. 2015). Where cond(A) is too large for that, a first round with A Aᵀ + s I brings
it down (shifted CholeskyQR3: Fukaya et al. 2020). float32 is done in float64, whose products are no slower on
the devices this is for; there two rounds do for every condition that float32 can hold.

Whether a round went well is seen from the one after it: Q1 Q1ᵀ may differ from the identity by less than 1/2 in
norm, which is read back to the host once. When it did not go well, the next way is taken, the last one is
Householder's. The diagonal of L is positive, whichever way was gone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _cholesky, _device, _sizes, _stream
from lapgrad._cuda._stream import on_its_device

#: Fukaya et al.: the shift, in units of (m n + m (m + 1)) eps |A|².
_SHIFT = 11.0


@on_its_device
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    m, n = A.shape[-2:]
    rank, items = min(m, n), A.shape[:-2].numel()
    serves = rank >= _sizes.LARGE and _sizes.one_by_one(items, rank) and not _stream.being_captured()
    if not serves or not (Q is None or _device.storable(Q)):
        return _fallback.gelqf(L, Q, A, positive)
    matrices, factors, rows = (None if X is None else _flat(X) for X in (A, L, Q))
    assert matrices is not None
    assert factors is not None
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


def _flat(A: Tensor) -> Tensor:
    """(items, m, n)."""
    return A.unsqueeze(0) if A.dim() == 2 else A.flatten(0, -3)


def _by_cholesky(A: Tensor, place: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(L, Q) of one wide matrix, in float64; None when its condition is beyond both variants.

    Q takes the place given, if that is of float64.
    """
    in_place = place is not None and place.dtype == torch.float64
    Q = place if in_place and place is not None else A.new_empty(A.shape, dtype=torch.float64)
    Q.copy_(A)
    notes = torch.zeros(3, dtype=torch.int32, device=Q.device)
    first = _gram(Q)
    _divide(Q, first, notes.data_ptr())
    second = _gram(Q)
    distance = _distance_from_identity(second)
    _divide(Q, second, notes.data_ptr() + 4)
    if _went_well(notes, distance):
        return _product(first.mT, second.mT), Q
    Q.copy_(A)
    notes.zero_()
    zeroth = _gram(Q)
    diagonal, (m, n) = zeroth.diagonal(), A.shape
    diagonal += _SHIFT * (m * n + m * (m + 1)) * torch.finfo(Q.dtype).eps * diagonal.sum()
    _divide(Q, zeroth, notes.data_ptr())
    first = _gram(Q)
    _divide(Q, first, notes.data_ptr() + 4)
    second = _gram(Q)
    distance = _distance_from_identity(second)
    _divide(Q, second, notes.data_ptr() + 8)
    if not _went_well(notes, distance):
        return None
    return _product(_product(zeroth.mT, first.mT), second.mT), Q


def _gram(Q: Tensor) -> Tensor:
    """The upper triangle of Q Qᵀ, zeros below."""
    R = Q.new_zeros(Q.shape[0], Q.shape[0])
    _device.syrk(R, Q, lower=False)
    return R


def _distance_from_identity(gram: Tensor) -> Tensor:
    """An upper bound of |G - I|² in the Frobenius norm, from the upper triangle of G."""
    identity = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    return 2.0 * (gram - identity).square().sum()


def _divide(Q: Tensor, R: Tensor, code: int) -> None:
    """R := the factor of its upper triangle, Rᵀ R, and Q := R⁻ᵀ Q. At ``code`` LAPACK leaves its own."""
    _cholesky.factorise_upper(R, code)
    _device.solve(Q, R.mT, "l", _sizes.ORTHOGONALISE_BLOCK, refine=True)


def _went_well(notes: Tensor, distance: Tensor) -> bool:
    *codes, moved = torch.cat([notes.to(distance.dtype), distance[None]]).tolist()
    return not any(codes) and moved < 0.25


def _product(first: Tensor, second: Tensor) -> Tensor:
    """The product of two lower triangles: with exact zeros above, it has them too."""
    product = first.new_empty(first.shape)
    _device.gemm(product, first, second)
    return product


@on_its_device
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA := L^-T (gQ + Z Q), Z = copyltu(L^T gL - gQ Q^T), for wide and square matrices."""
    rank, items = Q.shape[-2], Q.shape[:-2].numel()
    wide = L.shape[-2] == rank and _sizes.solves_by_blocks(rank, Q.shape[-1])
    if not wide or not _sizes.one_by_one(items, rank) or not _device.storable(gA):
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    factor, rows = _device.readable(L), _device.readable(Q)
    Z = L.new_empty(L.shape)
    if gL is not None:
        # Its lower triangle asks for none of gL's upper one.
        _device.gemm(Z, factor.mT, _device.readable(gL))
    if gQ is not None:
        kept = 0.0 if gL is None else 1.0
        _device.triangular_product(
            Z, _device.readable(gQ), rows.mT, True, -1.0, kept, _sizes.PRODUCT_CUT // 2
        )
        gA.copy_(gQ)
    _device.reshape(Z, _device.MIRROR_UP)
    _device.gemm(gA, Z, rows, 1.0, 0.0 if gQ is None else 1.0)
    _device.solve(gA, factor, "L", _sizes.SOLVE_BLOCK)
