"""cho_solve: solve with a Cholesky factor, on CUDA: two triangular solves, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large.zero_pivots import find_zero_pivot_later
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import triangular as _triangular_batch


@on_its_device
def cho_solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``; the host waits for the search for zero pivots alone."""
    answer = find_zero_pivot_later(L) if L.numel() else _items.report_no_failure
    _solve(X, L, B, lower)
    return answer()


@on_its_device
def cho_solve_regular(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> None:
    """``cho_solve`` for a factor without a zero on its diagonal: the host waits for nothing."""
    _solve(X, L, B, lower)


@on_its_device
def solve_psd_vjp(gA: Tensor, gB: Tensor, L: Tensor, X: Tensor, gX: Tensor, lower: bool) -> None:
    """gB := A^-1 gX, gA := -sym(gB X^T), for the factor L of A."""
    _solve(gB, L, gX, lower)
    left, right = (_items.flatten_batch(operand) for operand in (gB, X))
    product = torch.empty(len(left), *gA.shape[-2:], dtype=gA.dtype, device=gA.device)
    torch.baddbmm(product, left, right.mT, beta=0.0, alpha=-0.5, out=product)
    torch.add(product, product.mT, out=gA.view(product.shape))


def _solve(X: Tensor, L: Tensor, B: Tensor, lower: bool) -> None:
    """X := (L L^T)^-1 B, or (L^T L)^-1 B for an upper L. X is contiguous."""
    if not X.numel():
        return
    if _triangular_batch.serves(L, B):
        target, triangles = (_items.flatten_batch(operand) for operand in (X, L))
        source = _items.flatten_batch(B)
        for transpose in (not lower, lower):
            _launch.launch(
                *_triangular_batch.plan_application(
                    target, triangles, source, lower, transpose, False, solve=True, cell=None
                )
            )
            source = target
        return
    items, n = L.shape[:-2].numel(), L.shape[-1]
    factor = L if lower else L.mT
    if _thresholds.serves_items_one_by_one(items, n) and _thresholds.solves_by_blocks(n, X.shape[-1]):
        source = B if _device.is_storable(B) else B.contiguous()
        _device.solve(X, _device.make_readable(factor), "lL", _thresholds.SOLVE_BLOCK, source=source)
        return
    half = torch.linalg.solve_triangular(factor, B, upper=False)
    X.copy_(torch.linalg.solve_triangular(factor.mT, half, upper=True))
