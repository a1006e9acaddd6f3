"""potrf: Cholesky factorisation, on CUDA.

The factorisation is cuSOLVER's. It is faster on the lower triangle of a column-major matrix, which is the
upper one of our row-major memory: for ``lower`` it is turned over before, and the factor after, in place.
The gradient is the recursive reverse sweep of csrc/device_potrf.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _fallback
from lapgrad._cuda import _cholesky, _device, _launch, _potrf_batch, _sizes, _stream
from lapgrad._cuda._stream import on_its_device

_TILE = 32
_THREADS = 256
_ROWS_PER_BLOCK = 8


@on_its_device
def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    if _potrf_batch.serves(A):
        return _potrf_batch.potrf(L, A, lower, info)
    items, n = A.shape[:-2].numel(), A.shape[-1]
    if not A.numel() or not _sizes.one_by_one(items, n) or not _device.storable(L):
        return _fallback.potrf(L, A, lower, info)
    in_place = L.data_ptr() == A.data_ptr() and L.stride() == A.stride()
    source, target = _device.flat(A if in_place else _device.readable(A)), _device.flat(L)
    # LAPACK's codes, rows with a NaN or an infinity, and what both come to.
    notes = torch.zeros(3, items, dtype=torch.int32, device=L.device)
    code, spoilt, status = (notes.data_ptr() + 4 * items * row for row in range(3))
    address, _, step, _, _, row, col = _device.blocks(source if lower else source.mT)
    _launch.launch(
        "triangle", "first_spoilt_row<{T}>", L, (-(-n // _ROWS_PER_BLOCK), items), _THREADS, 0,
        address, step, row, col, n, spoilt,
    )  # fmt: skip
    if not in_place:
        target.copy_(source.mT if lower else source)
    elif lower:
        _device.reshape(target, _device.MIRROR_UP)
    # cuSOLVER does not use the other triangle, but does not keep a NaN in it apart either.
    _device.reshape(target, _device.CLEAR_LOWER)
    _cholesky.factorise_upper(target, code)
    kind = _device.MOVE_DOWN if lower else _device.CLEAR_LOWER
    tiles = -(-n // _TILE)
    _launch.launch(
        "triangle", f"finish_factor<{{T}}, {kind}>", L, (tiles * (tiles + 1) // 2, items), _THREADS,
        2 * _TILE * (_TILE + 1) * L.element_size(),
        target.data_ptr(), target.stride(0), target.stride(1), n, code, spoilt, status,
    )  # fmt: skip
    if info is not None:
        info.copy_(notes[2].view(info.shape))
        return None
    if _stream.being_captured():
        return None
    return next(((item, failure) for item, failure in enumerate(notes[2].tolist()) if failure), None)


@on_its_device
def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    if _potrf_batch.serves(L):
        _potrf_batch.potrf_vjp(gA, L, gL, lower, info)
        return
    items, n = L.shape[:-2].numel(), L.shape[-1]
    if not L.numel() or not _sizes.one_by_one(items, n) or not _device.storable(gA):
        _fallback.potrf_vjp(gA, L, gL, lower, info)
        return
    gA.copy_(gL if lower else gL.mT)
    # The sweep multiplies what is above the diagonal by zeros, which does not rid it of a NaN.
    _device.reshape(gA, _device.CLEAR_UPPER)
    factor = _device.readable(L if lower else L.mT)
    _device.potrf_vjp(gA, factor, _sizes.REVERSE_BLOCK, _sizes.PRODUCT_CUT)
    if info is not None:
        gA.masked_fill_((info != 0)[..., None, None], 0.0)
