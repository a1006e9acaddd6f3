"""gesv: solve with a general matrix by LU factorisation, on CUDA."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.large import lu as _lu
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.torch import gesv as _fallback


@on_its_device
def gesv(
    X: Tensor, LU: Tensor, pivots: Tensor, A: Tensor, B: Tensor, transpose: bool
) -> tuple[int, int] | None:
    if not A.numel() or not _lu.serves(A):
        return _fallback.gesv(X, LU, pivots, A, B, transpose)
    cell = _items.get_status_cell(A)
    matrices, (items, n) = _items.flatten_batch(A), (A.shape[:-2].numel(), A.shape[-1])
    factors, exchanges = LU.view(items, n, n), pivots.view(items, n + 1)
    if _lu_batch.serves(A):
        reported = _lu_batch.NON_FINITE | _lu_batch.ZERO_PIVOT
        _launch.launch(
            *_lu_batch.plan_factorisation(
                matrices, LU=factors, pivots=exchanges, scaled=True, reported=reported, cell=cell
            )
        )
        _solve(X, LU, pivots, B, transpose)
        return _items.read_first_failure(cell)
    # The factors are those of Aᵀ, which is stored by columns in the memory of A: that is a plain copy.
    _lu.factorise(factors, exchanges, matrices.mT)
    exchanges[:, n] = 0
    _solve(X, LU, pivots, B, transpose)
    if cell is None:
        return None
    _lu.finish(factors, exchanges, cell, A=matrices, strict=True)
    if _items.read_first_failure(cell) is None:
        return None
    if _fallback.gesv(X, LU, pivots, A.mT, B, not transpose) is None:
        return None
    return _fallback.gesv(X, LU, pivots, A, B, transpose)


@on_its_device
def gesv_factored(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> None:
    _solve(X, LU, pivots, B, transpose)


def serves_gesv_with_status(A: Tensor) -> bool:
    """Whether ``gesv_with_status`` takes a batch of this shape and type."""
    return _lu_batch.serves(A)


@on_its_device
def gesv_with_status(
    LU: Tensor, pivots: Tensor, info: Tensor, X: Tensor | None, A: Tensor, B: Tensor | None, transpose: bool
) -> None:
    """LU (stored transposed), pivots and info of LAPACK, and X := A⁻¹ B, or A⁻ᵀ B, unless X is None.

    The host does not wait to find out whether A is singular.
    """
    matrices = _items.flatten_batch(A)
    items, n, _ = matrices.shape
    factors, exchanges = LU.view(items, n, n), pivots.view(items, n)
    if X is not None:
        # Kernels that solve expect an exponent after the pivots of each matrix; these are not scaled.
        exchanges = exchanges.new_zeros(items, n + 1)
    plan = _lu_batch.plan_factorisation(
        matrices, LU=factors, pivots=exchanges, reported=_lu_batch.ZERO_PIVOT, info=info.view(-1), cell=None
    )
    _launch.launch(*plan)
    if X is None:
        return
    assert B is not None
    target = _items.view_batch(X)
    assert target is not None
    pivots.view(items, n).copy_(exchanges[:, :n])
    right = _items.flatten_batch(B)
    _launch.launch(*_lu_batch.plan_solution(target, factors, exchanges, right, transpose))


def _solve(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> None:
    """X := A⁻¹ B, or A⁻ᵀ B, from what ``gesv`` has left in LU and pivots."""
    target = _items.view_batch(X)
    n, small = LU.shape[-1], _lu_batch.serves(LU)
    if not X.numel() or target is None or not _lu.serves(LU):
        of_transpose = not small and _lu.serves(LU)
        _fallback.gesv_factored(X, LU, pivots, B, transpose != of_transpose)
        return
    right, factors, exchanges = _items.flatten_batch(B), LU.reshape(-1, n, n), pivots.reshape(-1, n + 1)
    if small:
        _launch.launch(*_lu_batch.plan_solution(target, factors, exchanges, right, transpose))
        return
    _lu.solve(target, factors, exchanges, right, not transpose)
