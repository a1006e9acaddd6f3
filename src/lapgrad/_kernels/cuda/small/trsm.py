"""trsm of batches of triangular matrices up to order 128."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import flatten_batch, view_batch
from lapgrad._kernels.cuda.small.triangular import plan_application, plan_zero_pivot_search, serves
from lapgrad._kernels.torch import trsm as _fallback

__all__ = ["serves", "trsm"]


def trsm(
    X: Tensor, L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool, checked: bool = True
) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts. Not ``checked``: no pivot is 0."""
    target = view_batch(X)
    if target is None:
        return _fallback.trsm(X, L, A, lower, transpose, rightside)
    triangles = flatten_batch(L)
    cell = _items.get_status_cell(A) if checked else None
    in_place = X.data_ptr() == A.data_ptr()
    if cell is not None and in_place:
        # Checked first: A must stay as it is if L is singular.
        _launch.launch(*plan_zero_pivot_search(triangles, cell))
    _launch.launch(
        *plan_application(
            target,
            triangles,
            flatten_batch(A),
            lower,
            transpose,
            rightside,
            solve=True,
            cell=cell,
            search=cell is not None and not in_place,
        )
    )
    return _items.read_first_failure(cell)
