"""potri: inverse from the Cholesky factor, on CUDA, in the memory of its result.

Block column after block column from the right, W = L⁻¹ takes the place of L: with I the rows below block J,

    W_IJ = −W_II (L_IJ W_JJ)

then, block row after block row from the top, Wᵀ W takes the place of W: rows J of it ask for rows from J on only.
What is needed beside the result is a block row, twice, and the inverses of the diagonal blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _sizes, _triangle
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of
from lapgrad._cuda.trsm import zero_pivot

_ITEMS = 8


@on_its_device
def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    if not _serves(B):
        return _fallback.potri(B, L, lower)
    failure = zero_pivot(L)
    if failure is None:
        _inverse(B, L, lower)
        _triangle.reshape(items_of(B), _triangle.MIRROR_UP)
    return failure


@on_its_device
def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    if not _serves(B):
        _fallback.potri_update(B, L, X, weight, lower, scale, ratio)
        return
    _inverse(B, L, lower)
    target = items_of(B)
    if X is not None:
        columns = items_of(_blas.readable(X))
        for item in range(target.shape[0]):
            _blas.syrk(target[item], columns[item], alpha=ratio, beta=1.0)
    B.mul_((scale * weight)[..., None, None])
    _triangle.reshape(target, _triangle.MIRROR_UP)


@on_its_device
def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    """gL := -2 tri(L^-T Z), Z = L^-1 sym(gB) L^-T, as three solves with the same inverted blocks."""
    if not _serves(gL):
        _fallback.potri_vjp(gL, L, gB, lower)
        return
    factor, Z = items_of(_blas.readable(L if lower else L.mT)), items_of(gL)
    torch.add(gB, gB.mT, out=gL)
    size = _sizes.SOLVE_BLOCK
    W = _triangle.inverted_blocks(factor, size)
    _triangle.solve_left(Z, factor, W, size, lower=True, alpha=-1.0)
    _triangle.solve_right(Z, factor.mT, W.mT, size, lower=False)
    _triangle.solve_left(Z, factor.mT, W.mT, size, lower=False)
    if lower:
        _triangle.reshape(Z, _triangle.CLEAR_UPPER)
        return
    # The result is the transpose of Z's lower triangle, and Z's upper one is of no use.
    _triangle.reshape(Z, _triangle.MIRROR_UP)
    _triangle.reshape(Z, _triangle.CLEAR_LOWER)


def _serves(B: Tensor) -> bool:
    return B.shape[-1] >= 2 * _triangle.LEAF and B.shape[:-2].numel() <= _ITEMS and _triangle.storable(B)


def _inverse(B: Tensor, L: Tensor, lower: bool) -> None:
    """The lower triangle of B := (L Lᵀ)⁻¹, or (Rᵀ R)⁻¹."""
    target, size = items_of(B), _sizes.INVERSE_BLOCK
    target.copy_(items_of(L if lower else L.mT))
    W = _triangle.inverted_blocks(target, size)
    held = B.new_empty(B.shape[-1] * min(B.shape[-1], size))
    for item in range(target.shape[0]):
        _invert(target[item], W[item], size, held)
        _square(target[item], size, held)


def _invert(B: Tensor, W: Tensor, size: int, held: Tensor) -> None:
    n = B.shape[-1]
    for start in reversed(range(0, n, size)):
        stop = min(start + size, n)
        inverse = W[start:stop, start:stop]
        if stop < n:
            product = held[: (n - stop) * (stop - start)].view(n - stop, stop - start)
            _blas.gemm(product, B[stop:, start:stop], inverse)
            _blas.trmm(B[stop:, start:stop], B[stop:, stop:], product, lower=True, alpha=-1.0)
        B[start:stop, start:stop] = inverse


def _square(B: Tensor, size: int, held: Tensor) -> None:
    n = B.shape[-1]
    for start in range(0, n, size):
        stop = min(start + size, n)
        row = held[: (stop - start) * stop].view(stop - start, stop)
        _blas.gemm(row, B[start:, start:stop].mT, B[start:, :stop])
        B[start:stop, :stop] = row
