"""potri: inverse from the Cholesky factor, on CUDA, in the memory of its result: csrc/gpu/device_potri.h."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large.zero_pivots import find_zero_pivot
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import potri as _potri_batch
from lapgrad._kernels.torch import potri as _fallback

_TILE = 32


@on_its_device
def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    if L.numel() and _potri_batch.serves(B):
        return _potri_batch.potri(B, L, lower)
    if not _serves(B):
        return _fallback.potri(B, L, lower)
    failure = find_zero_pivot(L)
    if failure is None:
        _invert(B, L, lower)
        _device.reshape_triangle(B, _device.MIRROR_UP)
    return failure


@on_its_device
def potri_update(
    B: Tensor, L: Tensor, X: Tensor | None, weight: Tensor, lower: bool, scale: float, ratio: float
) -> None:
    if not _serves(B):
        _fallback.potri_update(B, L, X, weight, lower, scale, ratio)
        return
    _invert(B, L, lower)
    if X is not None and X.shape[-1] > _thresholds.POTRI_FEW_COLUMNS:
        _device.syrk(B, _device.make_readable(X), lower=True, alpha=ratio, beta=1.0)
        X = None
    _finish(B, X, weight, scale, ratio)


@on_its_device
def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    """gL := -2 tri(L^-T Z), Z = L^-1 sym(gB) L^-T, as three solves with the same inverted blocks."""
    if L.numel() and _potri_batch.serves(gL):
        _potri_batch.potri_vjp(gL, L, gB, lower)
        return
    if not _serves(gL):
        _fallback.potri_vjp(gL, L, gB, lower)
        return
    torch.add(gB, gB.mT, out=gL)
    _device.solve(gL, _device.make_readable(L if lower else L.mT), "lRL", _thresholds.SOLVE_BLOCK, alpha=-1.0)
    if lower:
        _device.reshape_triangle(gL, _device.CLEAR_UPPER)
        return
    # The gradient of R is the transpose of the lower triangle.
    _device.reshape_triangle(gL, _device.MIRROR_UP)
    _device.reshape_triangle(gL, _device.CLEAR_LOWER)


def _finish(B: Tensor, X: Tensor | None, weight: Tensor, scale: float, ratio: float) -> None:
    """B := weight scale (B + ratio X Xᵀ) from B's lower triangle, mirrored, in one pass over the matrix."""
    address, items, step, n, _, row, _ = _device.describe_blocks(B)
    columns = B.new_empty(items, n, 0) if X is None else X.reshape(items, n, X.shape[-1])
    weights = weight.reshape(items).contiguous()
    tiles = -(-n // _TILE)
    _launch.launch(
        "triangle", "finish_inverse<{T}>", B, (tiles * (tiles + 1) // 2, items), 256,
        _TILE * (_TILE + 1) * B.element_size(), address, step, row, n,
        columns.data_ptr(), *columns.stride(), columns.shape[-1], weights.data_ptr(), scale, ratio,
    )  # fmt: skip


def _serves(B: Tensor) -> bool:
    return (
        B.shape[-1] >= _thresholds.LARGE
        and B.shape[:-2].numel() <= _thresholds.MOST_ITEMS
        and _device.is_storable(B)
    )


def _invert(B: Tensor, L: Tensor, lower: bool) -> None:
    """The lower triangle of B := (L Lᵀ)⁻¹, or (Rᵀ R)⁻¹."""
    in_place = B.data_ptr() == L.data_ptr() and B.stride() == L.stride()
    if not in_place:
        B.copy_(L if lower else L.mT)
    elif not lower:
        _device.reshape_triangle(B, _device.MOVE_DOWN)
    _device.potri(B, _thresholds.choose_inverse_block(B.shape[-1]))
