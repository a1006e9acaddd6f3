"""potrf: Cholesky factorisation, on CUDA.

The factorisation is cuSOLVER's. It is faster on the lower triangle of a column-major matrix, which is the upper one
of our row-major memory: for ``lower`` the matrix is turned over before, and the factor after, in place.

The gradient is the recursive reverse sweep (docs/derivations.md), with H = (G + Gᵀ)/2 in the place of G so that the
last block written is the gradient itself. For L and G split in four,

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
from lapgrad._cuda._stream import on_its_device
from lapgrad._cuda._triangle import items_of

#: Below this order a batch of that many is better served by torch's batched routines than one after another.
_ONE_BY_ONE_FROM = 512


@on_its_device
def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    items = A.shape[:-2].numel()
    n = A.shape[-1]
    if not A.numel() or not _triangle.storable(L) or (items > 2 and n < _ONE_BY_ONE_FROM):
        return _fallback.potrf(L, A, lower, info)
    return _one_by_one(L, A, lower, info)


def _one_by_one(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    source, target = items_of(A), items_of(L)
    items, n = target.shape[:2]
    first = torch.full((items,), n + 1, dtype=torch.int32, device=L.device)
    code = torch.zeros((items,), dtype=torch.int32, device=L.device)
    status = torch.empty((items,), dtype=torch.int32, device=L.device)
    seen = source if lower else source.mT
    _launch.launch(
        "triangle", "first_spoilt_row<{T}>", L, (-(-n // 8), items), 256, 0,
        seen.data_ptr(), seen.stride(0), seen.stride(1), seen.stride(2), n, first.data_ptr(),
    )  # fmt: skip
    if L.data_ptr() == A.data_ptr() and source.stride() == target.stride():
        if lower:
            _triangle.reshape(target, _triangle.MIRROR_UP)
    else:
        target.copy_(source.mT if lower else source)
    _cholesky.factorise_upper(target, code)
    kind = _triangle.MOVE_DOWN if lower else _triangle.CLEAR_LOWER
    _launch.launch(
        "triangle", f"finish_factor<{{T}}, {kind}>", L, (_triangle.tile_pairs(n), items), 256, _triangle.tile_memory(L),
        target.data_ptr(), target.stride(0), target.stride(1), n, code.data_ptr(), first.data_ptr(), status.data_ptr(),
    )  # fmt: skip
    if info is not None:
        info.copy_(status.view(info.shape))
        return None
    if _stream.being_captured():
        return None
    for item, failure in enumerate(status.tolist()):
        if failure:
            return item, failure
    return None


@on_its_device
def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    n = L.shape[-1]
    items = L.shape[:-2].numel()
    if n < 2 * _triangle.LEAF or items > 8 or not _triangle.storable(gA):
        _fallback.potrf_vjp(gA, L, gL, lower, info)
        return
    factor, G = items_of(_blas.readable(L if lower else L.mT)), items_of(gA)
    G.copy_(items_of(gL if lower else gL.mT))
    size = _sizes.reverse_block(n)
    W = _triangle.inverted_blocks(factor, size)
    _sweep(factor, G, W, size)
    if info is not None:
        gA.masked_fill_((info != 0)[..., None, None], 0.0)


def _sweep(L: Tensor, G: Tensor, W: Tensor, size: int) -> None:
    """H, symmetric, in the place of G, of which only the lower triangle is read."""
    n = L.shape[-1]
    if n <= size:
        _sweep_block(L, G, W)
        return
    half = size * (-(-n // size) // 2)
    L11, L21, L22 = L[:, :half, :half], L[:, half:, :half], L[:, half:, half:]
    H11, H21, H22 = G[:, :half, :half], G[:, half:, :half], G[:, half:, half:]
    _sweep(L22, H22, W[:, half:, half:], size)
    _blas.gemm(H21, H22, L21, alpha=-2.0, beta=1.0)
    _triangle.solve_right(H21, L11, W[:, :half, :half], size, lower=True, alpha=0.5)
    _triangle.lower_product(H11, H21.mT, L21, -2.0, 1.0)
    _sweep(L11, H11, W[:, :half, :half], size)
    G[:, :half, half:].copy_(H21.mT)


def _sweep_block(L: Tensor, G: Tensor, W: Tensor) -> None:
    """H = Wᵀ copyltu(Lᵀ G) W / 2. The lower triangle of Lᵀ G asks for none of G's upper one, as L has none."""
    middle, product = L.new_empty(2, *G.shape)
    _blas.gemm(middle, L.mT, G)
    _triangle.reshape(middle, _triangle.MIRROR_UP)
    _blas.gemm(product, middle, W)
    _blas.gemm(G, W.mT, product, alpha=0.5)
    _triangle.reshape(G, _triangle.MIRROR_UP)
