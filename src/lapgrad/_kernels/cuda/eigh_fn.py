"""eigh_fn: functions of a symmetric matrix, on CUDA: products around own kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import eigh_fn as _eigh_fn


@on_its_device
def eigh_fn(
    B: Tensor, U: Tensor, eigenvalues: Tensor, f: str, exponent: float, tol: float
) -> tuple[int, int] | None:
    """B := U^T diag(f(l)) U. Returns (item, 1 + place) of the first eigenvalue where f is not finite.

    U, the eigenvalues and B are contiguous. ``tol``: eigenvalues of this relative size may be zeros.
    """
    if not B.numel():
        return None
    cell = _items.get_status_cell(U)
    vectors, target = _items.flatten_batch(U), _items.flatten_batch(B)
    W = torch.empty_like(vectors)
    _launch.launch(*_eigh_fn.plan_scaling(W, vectors, eigenvalues, f, exponent, tol, cell))
    torch.bmm(vectors.mT, W, out=target)
    _launch.launch(*_eigh_fn.plan_symmetrising(target))
    return _items.read_first_failure(cell)


@on_its_device
def eigh_fn_vjp(
    gA: Tensor, U: Tensor, eigenvalues: Tensor, gB: Tensor, f: str, exponent: float, tol: float
) -> None:
    """gA := U^T (F o (U sym(gB) U^T)) U; nothing is waited for. U, the eigenvalues and gA are contiguous."""
    if not gA.numel():
        return
    vectors, target = _items.flatten_batch(U), _items.flatten_batch(gA)
    inner = torch.empty_like(vectors)
    torch.bmm(vectors, _items.flatten_batch(gB), out=inner)  # without `out`, autocast would round it
    torch.bmm(inner, vectors.mT, out=target)
    _launch.launch(*_eigh_fn.plan_weighing(target, eigenvalues, f, exponent, tol))
    torch.bmm(target, vectors, out=inner)
    torch.bmm(vectors.mT, inner, out=target)
    _launch.launch(*_eigh_fn.plan_symmetrising(target))
