"""potrf: Cholesky factorisation, on CUDA.

cuSOLVER factorises. It is faster on the lower triangle of a column-major matrix, which is the upper one of
our row-major memory. For ``lower`` the triangle is therefore transposed while it is copied into the result,
and the factor is transposed back in place.
The gradient is the recursive reverse sweep of csrc/gpu/device_potrf.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import potrf as _potrf_batch
from lapgrad._kernels.cuda.small import potrf_blocks as _potrf_blocks
from lapgrad._kernels.torch import potrf as _fallback

_TILE = 32
_THREADS = 256


@on_its_device
def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    if _potrf_batch.serves(A):
        return _potrf_batch.potrf(L, A, lower, info)
    items, n = A.shape[:-2].numel(), A.shape[-1]
    if not A.numel() or items > _thresholds.MOST_ITEMS or not _device.is_storable(L):
        return _fallback.potrf(L, A, lower, info)
    alone = items == 1 and n <= _thresholds.POTRF_ALONE and info is None and L.data_ptr() != A.data_ptr()
    if alone and _cholesky.factorise_alone(L.view(n, n), A.reshape(n, n), lower) is None:
        return None
    source, target = _items.flatten_batch(A if lower else A.mT), _device.flatten_batch(L)
    by_blocks = _thresholds.factorises_by_blocks(items, n)
    size = _thresholds.choose_potrf_block(items) if by_blocks else n
    blocks = -(-n // size)
    # Rows: the first row with a NaN or an infinity, and LAPACK's codes of the diagonal blocks; per item.
    notes = torch.zeros(1 + blocks, items, dtype=torch.int32, device=L.device)
    spoilt, code = notes.data_ptr(), notes.data_ptr() + 4 * items
    status = info if info is None or info.is_contiguous() else torch.empty_like(notes[0])
    cell = _items.get_status_cell(A) if info is None else None
    tiles = -(-n // _TILE)
    grid, tile_bytes = (tiles * (tiles + 1) // 2, items), _TILE * (_TILE + 1) * L.element_size()
    _launch.launch(
        "triangle", "take_triangle<{T}>", L, grid, _THREADS, tile_bytes,
        target.data_ptr(), *target.stride()[:2], source.data_ptr(), *source.stride(), n, spoilt,
    )  # fmt: skip
    if by_blocks:
        _potrf_blocks.factorise_upper(target, size, notes[1:])
    else:
        _cholesky.factorise_upper(target, code)
    kind = _device.MOVE_DOWN if lower else _device.CLEAR_LOWER
    _launch.launch(
        "triangle", f"finish_factor<{{T}}, {kind}>", L, grid, _THREADS, 2 * tile_bytes,
        target.data_ptr(), *target.stride()[:2], n, code, blocks, size, spoilt,
        _items.get_address(status), _items.get_address(cell),
    )  # fmt: skip
    if info is not None and status is not None and status is not info:
        info.copy_(status.view(info.shape))
    return _items.read_first_failure(cell)


@on_its_device
def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    if _potrf_batch.serves(L):
        _potrf_batch.potrf_vjp(gA, L, gL, lower, info)
        return
    too_many = L.shape[:-2].numel() > _thresholds.MOST_ITEMS
    if not L.numel() or too_many or not _device.is_storable(gA):
        _fallback.potrf_vjp(gA, L, gL, lower, info)
        return
    gA.copy_(gL if lower else gL.mT)
    # The sweep multiplies entries above the diagonal by zeros, which would leave a NaN.
    _device.reshape_triangle(gA, _device.CLEAR_UPPER)
    factor = _device.make_readable(L if lower else L.mT)
    _device.potrf_vjp(gA, factor, _thresholds.REVERSE_BLOCK, _thresholds.PRODUCT_CUT)
    if info is not None:
        gA.masked_fill_((info != 0)[..., None, None], 0.0)
