"""Factorisations, inverses and their gradients, by own kernels.

If one fails, the operator raises the error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import gesv as _gesv
from lapgrad._kernels.cuda import inverse as _inverse
from lapgrad._kernels.cuda import potrf as _potrf
from lapgrad._kernels.cuda import potri as _potri
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda import trmm as _trmm
from lapgrad._kernels.cuda import trsm as _trsm
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.large import triangular_solve as _solve
from lapgrad._kernels.cuda.runtime.items import view_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.shortcuts.planned import Planned
from lapgrad._kernels.cuda.small import potrf as _potrf_batch
from lapgrad._kernels.cuda.small import triangular as _triangular
from lapgrad._torch.layout import allocate_like


def factorise(A: Tensor, lower: bool) -> Tensor | None:
    """Return the Cholesky factor of A."""
    L = allocate_like(A)
    if A.dim() == 2 and _thresholds.POTRF_SMALL < len(A) <= _thresholds.POTRF_ALONE:
        return _factorise_alone(L, A, lower)
    return L if _potrf.potrf(L, A, lower, None) is None else None


@on_its_device
def _factorise_alone(L: Tensor, A: Tensor, lower: bool) -> Tensor | None:
    """Return L, filled with the factor of one matrix of a middle order; None if it fails."""
    return L if _cholesky.factorise_alone(L, A, lower) is None else None


def factorise_with_status(A: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of A, and a status per item."""
    L, info = allocate_like(A), A.new_empty(A.shape[:-2], dtype=torch.int32)
    _potrf.potrf(L, A, lower, info)
    return L, info


def plan_gradient_of_factor(L: Tensor, gL: Tensor, info: Tensor | None, lower: bool) -> Planned | None:
    """The gradient of the Cholesky factorisation of small matrices."""
    factors, cotangents = view_batch(L), view_batch(gL)
    if factors is None or cotangents is None or info is not None or not _potrf_batch.serves(L):
        return None
    gA = allocate_like(L)
    return gA, _potrf_batch.plan_vjp(gA.view(factors.shape), factors, cotangents, lower, None)


def pull_back_factor(L: Tensor, gL: Tensor, info: Tensor | None, lower: bool) -> Tensor:
    """Return the gradient of the Cholesky factorisation."""
    gA = allocate_like(L)
    _potrf.potrf_vjp(gA, L, gL, lower, info)
    return gA


def invert_from_factor(L: Tensor, lower: bool) -> Tensor | None:
    """Return the inverse of a matrix from its Cholesky factor."""
    B = allocate_like(L)
    return B if _potri.potri(B, L, lower) is None else None


def pull_back_inverse_from_factor(L: Tensor, gB: Tensor, lower: bool) -> Tensor:
    """Return the gradient of ``invert_from_factor``."""
    gL = allocate_like(L)
    _potri.potri_vjp(gL, L, gB, lower)
    return gL


def invert(A: Tensor) -> Tensor | None:
    """A⁻¹."""
    B = allocate_like(A)
    return B if _inverse.inverse(B, A) is None else None


def pull_back_inverse(B: Tensor, gB: Tensor) -> Tensor | None:
    """-Bᵀ gB Bᵀ."""
    turned = B.mT
    dimensions = B.dim()
    if dimensions > 3:
        return None
    return turned.bmm(gB).bmm(turned).neg_() if dimensions == 3 else turned.mm(gB).mm(turned).neg_()


def multiply_by_triangle(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> Tensor:
    """t(L) A, or A t(L)."""
    B = allocate_like(A)
    _trmm.trmm(B, L, A, lower, transpose, rightside)
    return B


def solve_with_triangle(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> Tensor | None:
    """t(L)⁻¹ A, or A t(L)⁻¹."""
    X = allocate_like(A)
    return X if _trsm.trsm(X, L, A, lower, transpose, rightside) is None else None


def plan_solution_with_checked_triangle(
    L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> Planned | None:
    """``solve_with_checked_triangle`` of small matrices."""
    triangles, matrices = view_batch(L), view_batch(A)
    if triangles is None or matrices is None or not _triangular.serves(L, A):
        return None
    X = allocate_like(A)
    target = X.view(matrices.shape)
    return X, _triangular.plan_application(
        target, triangles, matrices, lower, transpose, rightside, True, None
    )


def solve_with_checked_triangle(
    L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> Tensor:
    """``solve_with_triangle`` with an L that has been solved with before."""
    X = allocate_like(A)
    _solve_again(X, L, A, lower, transpose, rightside)
    return X


@on_its_device
def _solve_again(X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    _solve.solve(X, L, A, lower, transpose, rightside, checked=False)


def solve(A: Tensor, B: Tensor, transpose: bool) -> Tensor | None:
    """A⁻¹ B, or A⁻ᵀ B; the factors are not kept."""
    pivots = A.new_empty((*A.shape[:-2], A.shape[-1] + 1), dtype=torch.int32)
    X = allocate_like(B)
    return X if _gesv.gesv(X, A.new_empty(A.shape), pivots, A, B, transpose) is None else None
