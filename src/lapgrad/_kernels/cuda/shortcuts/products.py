"""Matrix products by torch's own functions.

cuBLAS does the work in all of them. For a small product the host takes longer than the device, and a gradient
that torch records in C++ costs a fraction of one that is recorded in Python.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import view_batch
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.shortcuts.planned import Planned
from lapgrad._kernels.cuda.small import products as _small
from lapgrad._kernels.cuda.small.packing import plan_mirror
from lapgrad._kernels.cuda.small.triangular import plan_application
from lapgrad._kernels.cuda.small.triangular import serves as serves_triangles
from lapgrad._torch.layout import allocate_like


def multiply(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    """alpha ta(A) tb(B)."""
    if transpose_a:
        A = A.mT
    if transpose_b:
        B = B.mT
    return _multiply(A, B, alpha)


def _multiply(A: Tensor, B: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha A B; for up to three dimensions without the overhead of ``matmul``."""
    dimensions = A.dim()
    if alpha == 1.0:
        return A.bmm(B) if dimensions == 3 else A.mm(B) if dimensions == 2 else A.matmul(B)
    # torch's sums of a product and another matrix take longer than a product and a multiplication.
    return _multiply(A, B).mul_(alpha)


def multiply_and_add(
    A: Tensor, B: Tensor, C: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> Tensor | None:
    """alpha ta(A) tb(B) + beta C; with beta = 0, C is not read."""
    dimensions = A.dim()
    if dimensions > 3:
        return None
    if transpose_a:
        A = A.mT
    if transpose_b:
        B = B.mT
    add = torch.baddbmm if dimensions == 3 else torch.addmm
    return add(C, A, B) if alpha == 1.0 == beta else add(C, A, B, beta=beta, alpha=alpha)


def multiply_triangle(
    A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> Tensor | None:
    """One triangle of alpha ta(A) tb(B), for orders at which the whole product is as fast."""
    if A.shape[-1 if transpose_a else -2] > _thresholds.PRODUCT_CUT:
        return None
    if transpose_a:
        A = A.mT
    if transpose_b:
        B = B.mT
    C = _multiply(A, B, alpha)
    return C.tril_() if lower else C.triu_()


def plan_product_with_transpose(A: Tensor, transpose: bool) -> Planned | None:
    """A Aᵀ, or Aᵀ A, of small matrices."""
    rows = view_batch(A.mT if transpose else A)
    if rows is None:
        return None
    items, n, k = rows.shape
    if not _small.serves(items, n, n, k):
        return None
    B = A.new_empty((*A.shape[:-2], n, n))
    return B, _small.plan_symmetric_result(B.view(items, n, n), rows)


def plan_triangle(
    A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> Planned | None:
    """One triangle of alpha ta(A) tb(B), of small matrices."""
    left, right = view_batch(A.mT if transpose_a else A), view_batch(B.mT if transpose_b else B)
    if left is None or right is None:
        return None
    items, n, k = left.shape
    if not _small.serves(items, n, n, k):
        return None
    C = A.new_empty((*A.shape[:-2], n, n))
    return C, _small.plan_triangular_result(C.view(items, n, n), left, right, lower, alpha)


def plan_product_with_triangle(
    L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> Planned | None:
    """t(L) A, or A t(L), of small matrices."""
    triangles, matrices = view_batch(L), view_batch(A)
    if triangles is None or matrices is None:
        return None
    B = allocate_like(A)
    target, (items, n, m), k = B.view(matrices.shape), matrices.shape, L.shape[-1]
    if serves_triangles(L, A):
        return B, plan_application(target, triangles, matrices, lower, transpose, rightside, False, None)
    if not _small.serves(items, n, m, k):
        return None
    return B, _small.plan_triangular_factor(target, triangles, matrices, lower, transpose, rightside)


def multiply_by_transpose(A: Tensor, transpose: bool) -> Tensor | None:
    """A Aᵀ, or Aᵀ A, symmetric to the last bit, for orders at which the whole product is as fast."""
    if A.shape[-1 if transpose else -2] > _thresholds.WHOLE_PRODUCT_UP_TO:
        return None
    turned = A.mT
    B = _multiply(turned, A) if transpose else _multiply(A, turned)
    # Not recorded: the derivative of A Aᵀ is that of the product, which differs from B by rounding only.
    _mirror(B)
    return B


def multiply_by_transpose_recorded(A: Tensor, transpose: bool) -> Tensor | None:
    """``multiply_by_transpose``; not where the second product of torch's gradient takes the device longer."""
    if A.numel() * A.shape[-1 if transpose else -2] > _thresholds.SYRK_VJP_TWICE:
        return None
    return multiply_by_transpose(A, transpose)


@on_its_device
def _mirror(B: Tensor) -> None:
    n = B.shape[-1]
    if n == 1:
        return
    if n <= _thresholds.MIRROR_BY_ROWS or B.dim() > 3:
        _launch.launch(*plan_mirror(B.view(-1, n, n)))
    else:
        _device.reshape_triangle(B, _device.MIRROR_UP)


def pull_back_product_with_transpose(A: Tensor, gB: Tensor, transpose: bool) -> Tensor:
    """(gB + gBᵀ) A, or A (gB + gBᵀ)."""
    both = gB + gB.mT
    return _multiply(A, both) if transpose else _multiply(both, A)


def multiply_by_triangle_recorded(
    L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool
) -> Tensor | None:
    """t(L) A, or A t(L), for orders at which the saved half of the product is not worth a gradient in Python.

    Small matrices are not served either: the two launches of the operator's own gradient are faster there.
    """
    n, (rows, columns) = L.shape[-1], A.shape[-2:]
    small = _small.serves(L.numel() // (n * n), rows, columns, n)
    if n > _thresholds.TRMM_WHOLE_UP_TO or small or serves_triangles(L, A):
        return None
    triangle = L.tril() if lower else L.triu()
    if transpose:
        triangle = triangle.mT
    return _multiply(A, triangle) if rightside else _multiply(triangle, A)
