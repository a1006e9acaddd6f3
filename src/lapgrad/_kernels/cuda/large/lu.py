"""LU factorisations for inverse, det, slogdet and gesv: by own kernels up to order 128, and batches above.

Nothing is repaired here: a matrix above order 128 that is singular or near the ends of the range of numbers
is reported, and the caller starts again in plain PyTorch, which finds the reason. Factors are contiguous and
stored transposed, as in ``small/lu.py``.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import get_address
from lapgrad._kernels.cuda.small import lu as _lu_batch
from lapgrad._kernels.cuda.small import lu_panels as _lu_panels
from lapgrad._kernels.cuda.small.lu import Determinants
from lapgrad._torch import lu as _torch_lu

_THREADS = 128
#: Threads of a block that checks a matrix, and blocks for all items together: they fill the device.
_CHECK_THREADS = 256
_CHECK_BLOCKS = 1024


def serves(A: Tensor) -> bool:
    """Whether the functions here take a batch of this shape and type, or those of ``small/lu.py`` do."""
    return _lu_batch.serves(A) or A.shape[:-2].numel() <= _thresholds.MOST_ITEMS


def compute_determinants(
    LU: Tensor, pivots: Tensor, A: Tensor, cell: Tensor | None, results: Determinants
) -> None:
    """Write ``results``; LU and pivots := the factors of A, unless they are empty.

    Items with entries that are not finite are reported.
    """
    matrices = _items.flatten_batch(A)
    items, n, _ = matrices.shape
    keeps = LU.numel() > 0
    if _lu_batch.serves(A):
        plan = _lu_batch.plan_factorisation(
            matrices,
            LU=LU if keeps else None,
            pivots=pivots.view(items, n) if keeps else None,
            determinants=results,
            cell=cell,
        )
        _launch.launch(*plan)
        return
    factors = LU.view(items, n, n) if keeps else torch.empty(items, n, n, dtype=A.dtype, device=A.device)
    exchanges = pivots.view(items, n) if keeps else A.new_empty(items, n, dtype=torch.int32)
    factorise(factors, exchanges, matrices)
    finish(factors, exchanges, cell, A=matrices, determinants=results)


def factorise(LU: Tensor, pivots: Tensor, A: Tensor) -> None:
    """LU (items, n, n), contiguous, := the factors of A, transposed; pivots (items, n or more): LAPACK's."""
    items, n, _ = A.shape
    if _thresholds.eliminates_by_panels(items, n):
        LU.copy_(A.mT)
        _lu_panels.factorise(LU, pivots)
        return
    exchanges = pivots if pivots.shape[1] == n and pivots.is_contiguous() else torch.empty_like(pivots[:, :n])
    _torch_lu.lu_factor_into(LU.mT, exchanges, A)
    if exchanges is not pivots:
        pivots[:, :n] = exchanges


def finish(
    LU: Tensor,
    pivots: Tensor,
    cell: Tensor | None,
    *,
    A: Tensor | None = None,
    X: Tensor | None = None,
    determinants: Determinants | None = None,
    mantissa: Tensor | None = None,
    exponent: Tensor | None = None,
    strict: bool = False,
) -> None:
    """Compute determinants, and report items with entries that are not finite, in A, its factors or X.

    They are also written as ``mantissa`` times two to ``exponent``, if those are given.
    ``strict``: items that are singular, or near the ends of the range, are reported, too.
    """
    items, n, _ = LU.shape
    warps = _CHECK_THREADS // 32
    blocks = max(1, min(-(-n // warps), _CHECK_BLOCKS // items)) if cell is not None else 1
    operands = ((0, 0, 0, 0) if M is None else (M.data_ptr(), *M.stride()) for M in (A, X))
    results = map(get_address, (*(determinants or Determinants()), mantissa, exponent))
    _launch.launch(
        "lu_panel", "finish_factors<{T}>", LU, (blocks, items), _CHECK_THREADS, 3 * warps * LU.element_size(),
        LU.data_ptr(), pivots.data_ptr(), pivots.stride(0), *itertools.chain(*operands), *results, n,
        int(strict), get_address(cell),
    )  # fmt: skip


def solve(X: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> None:
    """X := A⁻¹ B, or A⁻ᵀ B, from what ``factorise`` has left; pivots (items, n + 1) end with an exponent.

    Columns of B near the ends of the range are scaled: sums of products overflow before X does.
    """
    items, n, columns = B.shape
    exponents = torch.empty(items, columns, dtype=torch.int32, device=B.device)
    solved = B.new_empty(items, columns, n).mT
    _scale_columns(solved, B, exponents)
    exchanges = pivots[:, :n].contiguous()
    torch.linalg.lu_solve(LU.mT, exchanges, solved, adjoint=transpose, out=solved)
    _scale_columns(X, solved, exponents, pivots[:, n:])


def invert(X: Tensor, LU: Tensor, pivots: Tensor) -> None:
    """X, any strides, := A⁻¹ = U⁻¹ L⁻¹ P, from what ``factorise`` has left, with inverted diagonal blocks."""
    items, n, _ = LU.shape
    target = X if 1 in (X.stride(-1), X.stride(-2)) else torch.empty_like(LU)
    target.zero_()
    _launch.launch(
        "lu_panel", "place_ones<{T}>", LU, (items,), _CHECK_THREADS, 8 * n,
        target.data_ptr(), *target.stride(), pivots.data_ptr(), pivots.stride(0), n,
    )  # fmt: skip
    _device.solve(target, LU.mT, "l", _thresholds.SOLVE_BLOCK, unit=True)
    _device.solve(target, LU, "L", _thresholds.SOLVE_BLOCK)
    if target is not X:
        X.copy_(target)


def scale_items(target: Tensor, source: Tensor, exponents: Tensor) -> None:
    """target := source times two to the exponent of each item."""
    items, rows, columns = source.shape
    _launch.launch(
        "lu_panel", "scale_items<{T}>", target, (rows, items), _THREADS, 0,
        target.data_ptr(), *target.stride(), source.data_ptr(), *source.stride(), columns,
        exponents.data_ptr(),
    )  # fmt: skip


def _scale_columns(target: Tensor, source: Tensor, exponents: Tensor, last: Tensor | None = None) -> None:
    """Launch ``scale_columns`` of ``kernels/lu_panel.cu``; with ``last`` it undoes the scaling."""
    items, rows, columns = source.shape
    _launch.launch(
        "lu_panel", "scale_columns<{T}>", target, (-(-columns // 32), items), _CHECK_THREADS,
        _CHECK_THREADS * target.element_size(), target.data_ptr(), *target.stride(), source.data_ptr(),
        *source.stride(), rows, columns, exponents.data_ptr(), int(last is not None), get_address(last),
        0 if last is None else last.stride(0),
    )  # fmt: skip
