"""The choice among algorithms for a triangular solve.

cuBLAS's own substitution reaches a fifth of the speed of its product at n = 2048. With inverted diagonal
blocks a solve consists of products, which is faster from some hundred rows and columns on. For a single
column cuBLAS has another routine, which torch calls: it is six times as fast as the one for several.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large.zero_pivots import find_zero_pivot, find_zero_pivot_later
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import trsm as _trsm_batch
from lapgrad._kernels.torch import trsm as _fallback


def solve(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool, checked: bool
) -> tuple[int, int] | None:
    """Same as ``trsm`` of ``_kernels.torch``.

    Not ``checked``: no pivot of L is 0, X is not A, and the host does not wait.
    """
    if _trsm_batch.serves(L, A):
        return _trsm_batch.trsm(X, L, A, lower, transpose, rightside, checked)
    items, n = L.shape[:-2].numel(), L.shape[-1]
    if not X.numel() or not _device.is_storable(X):
        return _fallback.trsm(X, L, A, lower, transpose, rightside)
    in_place = X.data_ptr() == A.data_ptr() and X.stride() == A.stride()
    if not _thresholds.serves_items_one_by_one(items, n):
        if in_place:
            return _fallback.trsm(X, L, A, lower, transpose, rightside)
        answer = find_zero_pivot_later(L) if checked else _items.report_no_failure
        # torch's results are column-major: it solves for the transpose of X.
        torch.linalg.solve_triangular(
            L if transpose else L.mT, A.mT, upper=lower != transpose, left=rightside, out=X.mT
        )
        return answer()
    if in_place:
        # Checked first: A must stay as it is if L is singular.
        failure = find_zero_pivot(L)
        if failure is not None:
            return failure
    answer = _items.report_no_failure if in_place or not checked else find_zero_pivot_later(L)
    if _thresholds.solves_one_column(items, n, X.shape[-2] if rightside else X.shape[-1]) and not rightside:
        X.copy_(torch.linalg.solve_triangular(L.mT if transpose else L, A, upper=lower == transpose))
        return answer()
    factor = _device.make_readable(L)
    by_blocks = _thresholds.solves_by_blocks(n, X.shape[-2] if rightside else X.shape[-1])
    source = A if by_blocks and _device.is_storable(A) else X
    if source is X and not in_place:
        X.copy_(A)
    if by_blocks:
        # The core inverts lower triangles: L itself, or the transpose of an upper L.
        step = ("r" if rightside else "l") if lower != transpose else ("R" if rightside else "L")
        _device.solve(X, factor if lower else factor.mT, step, _thresholds.SOLVE_BLOCK, source=source)
    else:
        _device.trsm(X, factor.mT if transpose else factor, lower != transpose, rightside)
    return answer()
