"""potri: inverse from the Cholesky factor, on CUDA, in the memory of its result.

Block column after block column from the right, W = L⁻¹ takes the place of L: with I the rows below block J,

    W_IJ = −W_II (L_IJ W_JJ)

then, block row after block row from the top, Wᵀ W takes the place of W: rows J of it ask for rows from J on only.
What is needed beside the result is one block row, and the inverses of the diagonal blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _sizes, _triangle
from lapgrad._cuda._blas import Blas
from lapgrad._cuda._block import Block, block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import InvertedBlocks, items_of
from lapgrad._cuda.trsm import zero_pivot


@on_its_device
def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    if not _serves(B):
        return _fallback.potri(B, L, lower)
    failure = zero_pivot(L)
    if failure is None:
        _inverse(_blas.on(B), B, L, lower)
        _triangle.reshape(B, block_of(items_of(B)), _triangle.MIRROR_UP)
    return failure


@on_its_device
def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    if not _serves(B):
        _fallback.potri_update(B, L, X, weight, lower, scale, ratio)
        return
    blas, target = _blas.on(B), block_of(items_of(B))
    _inverse(blas, B, L, lower)
    if X is not None:
        columns = block_of(items_of(_blas.readable(X)))
        for item in range(target.items):
            blas.syrk(target.item(item), columns.item(item), alpha=ratio, beta=1.0)
    B.mul_((scale * weight)[..., None, None])
    _triangle.reshape(B, target, _triangle.MIRROR_UP)


@on_its_device
def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    """gL := -2 tri(L^-T Z), Z = L^-1 sym(gB) L^-T, as three solves with the same inverted blocks."""
    if not _serves(gL):
        _fallback.potri_vjp(gL, L, gB, lower)
        return
    blas, factor = _blas.on(L), block_of(items_of(_blas.readable(L if lower else L.mT)))
    torch.add(gB, gB.mT, out=gL)
    Z = block_of(items_of(gL))
    inverted = InvertedBlocks(blas, L, factor, _sizes.SOLVE_BLOCK)
    _triangle.solve_left(blas, L, Z, factor, inverted, lower=True, alpha=-1.0)
    _triangle.solve_right(blas, L, Z, factor.mT, inverted, lower=False, transposed=True)
    _triangle.solve_left(blas, L, Z, factor.mT, inverted, lower=False, transposed=True)
    if lower:
        _triangle.reshape(L, Z, _triangle.CLEAR_UPPER)
        return
    # The gradient of R is the transpose of Z's lower triangle.
    _triangle.reshape(L, Z, _triangle.MIRROR_UP)
    _triangle.reshape(L, Z, _triangle.CLEAR_LOWER)


def _serves(B: Tensor) -> bool:
    n = B.shape[-1]
    return n >= 2 * _triangle.LEAF and _sizes.one_by_one(B.shape[:-2].numel(), n) and _triangle.storable(B)


def _inverse(blas: Blas, B: Tensor, L: Tensor, lower: bool) -> None:
    """The lower triangle of B := (L Lᵀ)⁻¹, or (Rᵀ R)⁻¹."""
    B.copy_(L if lower else L.mT)
    target, n, size = block_of(items_of(B)), B.shape[-1], _sizes.INVERSE_BLOCK
    W = InvertedBlocks(blas, B, target, size)
    held = B.new_empty(n * min(n, size))
    for item in range(target.items):
        _invert(blas, B, target.item(item), W.W.item(item), size, held.data_ptr())
        _square(blas, B, target.item(item), size, held.data_ptr())


def _invert(blas: Blas, like: Tensor, B: Block, W: Block, size: int, held: int) -> None:
    n = B.rows
    for start in reversed(range(0, n, size)):
        stop = min(start + size, n)
        inverse = W.part(start, stop, start, stop)
        if stop < n:
            product = Block(held, n - stop, stop - start, stop - start, 1, B.bytes)
            column = B.part(stop, n, start, stop)
            blas.gemm(product, column, inverse)
            blas.trmm(column, B.part(stop, n, stop, n), product, lower=True, alpha=-1.0)
        _triangle.copy(like, B.part(start, stop, start, stop), inverse)


def _square(blas: Blas, like: Tensor, B: Block, size: int, held: int) -> None:
    n = B.rows
    for start in range(0, n, size):
        stop = min(start + size, n)
        row = Block(held, stop - start, stop, stop, 1, B.bytes)
        blas.gemm(row, B.part(start, n, start, stop).mT, B.part(start, n, 0, stop))
        _triangle.copy(like, B.part(start, stop, 0, stop), row)
