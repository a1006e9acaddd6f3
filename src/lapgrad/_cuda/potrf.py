"""potrf: Cholesky factorisation, on CUDA.

The factorisation is cuSOLVER's. It is faster on the lower triangle of a column-major matrix, which is the upper
one of our row-major memory: for ``lower`` the matrix is turned over before, and the factor after, in place.

The gradient is the recursive reverse sweep (docs/derivations.md), with H = (G + Gᵀ)/2 in the place of G so that
the last block written is the gradient itself. For L and G split in four,

    H22 := sweep(L22, G22)
    H21 := (G21 − 2 H22 L21) L11⁻¹ / 2
    G11 := G11 − 2 tril(H21ᵀ L21),  H11 := sweep(L11, G11)

A block on the diagonal, of which the inverse W is known: H = Wᵀ copyltu(Lᵀ G) W / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _blas, _cholesky, _launch, _sizes, _stream, _triangle
from lapgrad._cuda._blas import Blas
from lapgrad._cuda._block import Block, block_of
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import InvertedBlocks, items_of


@on_its_device
def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    items, n = A.shape[:-2].numel(), A.shape[-1]
    if not A.numel() or not _triangle.storable(L) or not _sizes.one_by_one(items, n):
        return _fallback.potrf(L, A, lower, info)
    source, target = items_of(A), block_of(items_of(L))
    # LAPACK's codes, rows with a NaN or an infinity, and what both come to.
    notes = torch.zeros(3, items, dtype=torch.int32, device=L.device)
    code, spoilt, status = (notes.data_ptr() + 4 * items * row for row in range(3))
    seen = block_of(source if lower else source.mT)
    _launch.launch(
        "triangle", "first_spoilt_row<{T}>", L, (-(-n // 8), items), 256, 0,
        seen.address, seen.step, seen.row, seen.col, n, spoilt,
    )  # fmt: skip
    if L.data_ptr() != A.data_ptr() or L.stride() != A.stride():
        items_of(L).copy_(source.mT if lower else source)
    elif lower:
        _triangle.reshape(L, target, _triangle.MIRROR_UP)
    _cholesky.factorise_upper(L, target, code)
    kind = _triangle.MOVE_DOWN if lower else _triangle.CLEAR_LOWER
    _launch.launch(
        "triangle", f"finish_factor<{{T}}, {kind}>", L, (_triangle.tile_pairs(n), items), 256,
        _triangle.tile_memory(target.bytes), target.address, target.step, target.row, n,
        code, spoilt, status,
    )  # fmt: skip
    if info is not None:
        info.copy_(notes[2].view(info.shape))
        return None
    if _stream.being_captured():
        return None
    return next(((item, failure) for item, failure in enumerate(notes[2].tolist()) if failure), None)


@on_its_device
def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    items, n = L.shape[:-2].numel(), L.shape[-1]
    if n < 2 * _triangle.LEAF or not _sizes.one_by_one(items, n) or not _triangle.storable(gA):
        _fallback.potrf_vjp(gA, L, gL, lower, info)
        return
    factor = items_of(_blas.readable(L if lower else L.mT))
    gA.copy_(gL if lower else gL.mT)
    blas, block = _blas.on(L), block_of(factor)
    inverted = InvertedBlocks(blas, L, block, _sizes.reverse_block(n))
    _sweep(blas, L, block, block_of(items_of(gA)), inverted, 0, n)
    if info is not None:
        gA.masked_fill_((info != 0)[..., None, None], 0.0)


def _sweep(blas: Blas, like: Tensor, L: Block, G: Block, inverted: InvertedBlocks, lo: int, hi: int) -> None:
    """H, symmetric, in the place of G from ``lo`` to ``hi``, of which only the lower triangle is read."""
    size = inverted.size
    if hi - lo <= size:
        diagonal = (lo, hi, lo, hi)
        _sweep_block(blas, like, L.part(*diagonal), G.part(*diagonal), inverted.W.part(*diagonal))
        return
    mid = lo + size * (-(-(hi - lo) // size) // 2)
    L21, H21 = L.part(mid, hi, lo, mid), G.part(mid, hi, lo, mid)
    _sweep(blas, like, L, G, inverted, mid, hi)
    blas.gemm(H21, G.part(mid, hi, mid, hi), L21, -2.0, 1.0)
    _triangle.solve_right(
        blas, like, H21, L.part(lo, mid, lo, mid), inverted.between(lo, mid), lower=True, alpha=0.5
    )
    _triangle.triangular_product(
        blas, G.part(lo, mid, lo, mid), H21.mT, L21, lower=True, alpha=-2.0, beta=1.0
    )
    _sweep(blas, like, L, G, inverted, lo, mid)
    _triangle.copy_transposed(like, G.part(lo, mid, mid, hi), H21)


def _sweep_block(blas: Blas, like: Tensor, L: Block, G: Block, W: Block) -> None:
    """H = Wᵀ copyltu(Lᵀ G) W / 2. The lower triangle of Lᵀ G asks for none of G's upper one, as L has none."""
    n = L.rows
    memory = like.new_empty(2 * L.items * n * n)
    middle = Block(memory.data_ptr(), n, n, n, 1, L.bytes, L.items, n * n)
    product = middle._replace(address=middle.address + L.items * n * n * L.bytes)
    blas.gemm(middle, L.mT, G)
    _triangle.reshape(like, middle, _triangle.MIRROR_UP)
    blas.gemm(product, middle, W)
    blas.gemm(G, W.mT, product, 0.5)
    _triangle.reshape(like, G, _triangle.MIRROR_UP)
