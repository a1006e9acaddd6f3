"""LU factorisations for inverse, det, slogdet and gesv: by own kernels up to order 128, and batches above.

Nothing is repaired here: a matrix above order 128 that is not regular and well inside the range of its
numbers is reported, and the caller starts again in plain PyTorch, which says what is wrong with it. Factors
are contiguous and stored transposed, as in ``small/lu.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import get_address
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.cuda.small import lu_panels as _lu_panels

_THREADS = 128


def compute_determinants(
    LU: Tensor, pivots: Tensor, A: Tensor, cell: Tensor | None, **results: Tensor
) -> None:
    """Writes ``results`` (as in ``finish``); LU and pivots := the factors of A, unless they are empty.

    Items with entries that are not finite are reported.
    """
    matrices = _items.flatten_batch(A)
    items, n, _ = matrices.shape
    keeps = LU.numel() > 0
    if _lu_batch.serves(A):
        factors = {"LU": LU, "pivots": pivots.view(items, n)} if keeps else {}
        _launch.launch(*_lu_batch.plan_factorisation(matrices, **factors, **results, cell=cell))
        return
    factor = (
        LU.view(items, n, n) if keeps else torch.empty_like(matrices, memory_format=torch.contiguous_format)
    )
    exchanges = pivots.view(items, n) if keeps else A.new_empty(items, n, dtype=torch.int32)
    factorise(factor, exchanges, matrices)
    finish(factor, exchanges, find_norms(matrices), **results, cell=cell)


def factorise(LU: Tensor, pivots: Tensor, A: Tensor) -> None:
    """LU (items, n, n), contiguous, := the factors of A, transposed; pivots (items, n or more): LAPACK's."""
    items, n, _ = A.shape
    if _thresholds.eliminates_by_panels(items, n):
        LU.copy_(A.mT)
        _lu_panels.factorise(LU, pivots)
        return
    factors, exchanges, _ = torch.linalg.lu_factor_ex(A)
    LU.copy_(factors.mT)
    pivots[:, :n] = exchanges


def find_norms(A: Tensor) -> Tensor:
    """The largest absolute value of each item's entries, (items); NaN where one is NaN."""
    return torch.linalg.vector_norm(A, math.inf, dim=(-2, -1))


def finish(
    LU: Tensor,
    pivots: Tensor,
    norms: Tensor | None,
    *,
    determinant: Tensor | None = None,
    sign: Tensor | None = None,
    logarithm: Tensor | None = None,
    mantissa: Tensor | None = None,
    exponent: Tensor | None = None,
    strict: bool = False,
    cell: Tensor | None = None,
) -> None:
    """Computes determinants, and reports items with entries that are not finite.

    ``norms`` are those of the matrices; without them nothing is checked. ``strict``: items that are singular,
    or near the ends of the range, are reported, too.
    """
    items, n, _ = LU.shape
    item, row, column = LU.stride()
    results = map(get_address, (determinant, sign, logarithm, mantissa, exponent))
    factor_norms = None if norms is None else find_norms(LU)
    _launch.launch(
        "lu_panel", "finish_factors<{T}>", LU, (items,), _THREADS, _THREADS // 16 * LU.element_size(),
        LU.data_ptr(), item, row + column, pivots.data_ptr(), pivots.stride(0), *results,
        get_address(norms), get_address(factor_norms), n, int(strict), get_address(cell),
    )  # fmt: skip


def solve(LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """A⁻¹ B, or A⁻ᵀ B, from what ``factorise`` has left."""
    return torch.linalg.lu_solve(LU.mT, pivots, B, adjoint=transpose)


def invert(LU: Tensor, pivots: Tensor, transpose: bool = False) -> Tensor:
    """A⁻¹, or A⁻ᵀ, from what ``factorise`` has left."""
    identity = torch.eye(LU.shape[-1], dtype=LU.dtype, device=LU.device)
    return solve(LU, pivots, identity.expand_as(LU), transpose)


def scale(
    target: Tensor, source: Tensor, norms: Tensor | None, sign: int = 1, last: Tensor | None = None
) -> None:
    """target := source times a power of two per item: ``scale_items`` in ``kernels/lu_panel.cu``."""
    items, rows, columns = source.shape
    _launch.launch(
        "lu_panel", "scale_items<{T}>", target, (rows, items), _THREADS, 0,
        target.data_ptr(), *target.stride(), source.data_ptr(), *source.stride(), columns,
        get_address(norms), sign, get_address(last), 0 if last is None else last.stride(0),
    )  # fmt: skip
