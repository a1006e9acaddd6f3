"""potri of batches of triangular matrices up to order 128, by the kernels of trsm."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.small import products as _products
from lapgrad._kernels.cuda.small.packing import plan_mirror
from lapgrad._kernels.cuda.small.triangular import has_memory, plan_application


def serves(B: Tensor) -> bool:
    """Whether these functions write into a batch of this shape and layout."""
    return 0 < B.shape[-1] <= _thresholds.TRIANGULAR_SMALL and B.is_contiguous() and has_memory(B)


def potri(B: Tensor, L: Tensor, lower: bool) -> tuple[int, int] | None:
    """B := Wᵀ W, W = L⁻¹, mirrored. Returns (item, index) of the first zero pivot; L is then untouched."""
    n = L.shape[-1]
    target, triangles = B.view(-1, n, n), _items.flatten_batch(L if lower else L.mT)
    cell = _items.get_status_cell(L)
    identity = torch.eye(n, dtype=L.dtype, device=L.device).expand(len(target), n, n)
    W = torch.empty_like(target)
    plan = plan_application(
        W,
        triangles,
        identity,
        lower=True,
        transpose=False,
        rightside=False,
        solve=True,
        cell=cell,
        search=cell is not None,
    )
    _launch.launch(*plan)
    in_place = B.data_ptr() == L.data_ptr()
    failure = _items.read_first_failure(cell) if in_place else None
    if failure is None:
        if _products.serves(len(target), n, n, n):
            _launch.launch(*_products.plan_symmetric_result(target, W.mT))
        else:
            torch.bmm(W.mT, W, out=target)
            _launch.launch(*plan_mirror(target))
    return failure if in_place else _items.read_first_failure(cell)


def potri_vjp(gL: Tensor, L: Tensor, gB: Tensor, lower: bool) -> None:
    """gL := -tri(L⁻ᵀ Z), Z = L⁻¹ (gB + gBᵀ) L⁻ᵀ."""
    n = L.shape[-1]
    triangles = _items.flatten_batch(L if lower else L.mT)
    X = torch.add(gB, gB.mT).reshape(-1, n, n)
    for transpose, rightside in ((False, False), (True, True), (True, False)):
        plan = plan_application(
            X, triangles, X, lower=True, transpose=transpose, rightside=rightside, solve=True, cell=None
        )
        _launch.launch(*plan)
    X = X.tril_().view(gL.shape)
    torch.neg(X if lower else X.mT, out=gL)
