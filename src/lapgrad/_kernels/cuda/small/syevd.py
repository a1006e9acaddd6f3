"""Eigenvalues and eigenvectors of small symmetric matrices and their gradient: own kernels.

See ``kernels/syevd_batch.cu`` and ``kernels/syevd_vjp_batch.cu``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime.items import Launch, flatten_batch, get_address
from lapgrad._kernels.cuda.small.ties import TieCheck

#: (largest order, lanes for one matrix, threads of a block). A lane has one column, at order 64 two. Blocks
#: are just large enough for 32 of them to fill a multiprocessor: a block ends only with the slowest of its
#: matrices.
_KINDS = ((8, 8, 128), (16, 16, 128), (32, 32, 64), (64, 32, 32))

#: (largest order, rows and columns of the grid of threads for one gradient, threads of a block). A thread has
#: 4 x 4 or 4 x 2 entries of each product.
_GRADIENT_KINDS = ((8, 4, 4, 64), (16, 4, 8, 64), (32, 8, 8, 64), (64, 16, 16, 256))


def serves(A: Tensor) -> bool:
    """Whether the kernel takes these matrices; their strides do not matter."""
    return 0 < A.shape[-1] <= _thresholds.SYEVD_SMALL and A.numel() > 0


def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    values, rows = _make_contiguous(eigenvalues), None if U is None else _make_contiguous(U)
    cell = _items.get_status_cell(A)
    _launch.launch(*plan_decomposition(values, rows, flatten_batch(A), lower, cell))
    if values is not eigenvalues:
        eigenvalues.copy_(values)
    if U is not None and rows is not None and rows is not U:
        U.copy_(rows)
    return _items.read_first_failure(cell)


def plan_decomposition(
    eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool, cell: Tensor | None
) -> Launch:
    """Return the launch for A with one batch dimension and contiguous results."""
    items, n, _ = A.shape
    order, lanes, threads = next(kind for kind in _KINDS if n <= kind[0])
    matrices = threads // lanes
    step, rows, columns = A.stride()
    return (
        "syevd_batch",
        f"syevd<{{T}}, {order}, {lanes}, {'false' if U is None else 'true'}>",
        A,
        (-(-items // matrices),),
        threads,
        matrices * (n * (n | 1) + 5 * n) * A.element_size(),
        A.data_ptr(),
        step,
        *((rows, columns) if lower else (columns, rows)),
        eigenvalues.data_ptr(),
        get_address(U),
        get_address(cell),
        items,
        n,
    )


def serves_vjp(U: Tensor) -> bool:
    """Return whether the kernel computes the gradient of matrices of this size."""
    return U.numel() > 0 and U.shape[-1] <= _thresholds.SPECTRAL_VJP_SMALL


def syevd_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
) -> tuple[int, int] | None:
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None."""
    written, values = _make_contiguous(gA), eigenvalues.contiguous()
    many = U.numel() >= _thresholds.SPECTRAL_VJP_UNWAITED
    check = TieCheck(values, tol, zeros=False, searches=many)
    steps = None if slope is None else slope.contiguous()
    cotangent = None if gU is None else flatten_batch(gU)
    plan = plan_vjp(written, flatten_batch(U), values, cotangent, steps, degeneracy, tol, check.cell)
    _launch.launch(*plan)
    if written is not gA:
        gA.copy_(written)
    return check.read()


def plan_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
    cell: Tensor | None,
) -> Launch:
    """The launch that computes the gradient: U and gU with one batch dimension, the rest contiguous."""
    items, n, _ = U.shape
    side, down, across, threads = next(kind for kind in _GRADIENT_KINDS if n <= kind[0])
    matrices = threads // (down * across)
    return (
        "syevd_vjp_batch",
        f"syevd_vjp<{{T}}, {side}, {down}, {across}>",
        U,
        (-(-items // matrices),),
        threads,
        matrices * (3 * n * (n | 1) + 3 * n + 32) * U.element_size(),
        U.data_ptr(),
        *U.stride(),
        eigenvalues.data_ptr(),
        *((0, 0, 0, 0) if gU is None else (gU.data_ptr(), *gU.stride())),
        get_address(slope),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        gA.data_ptr(),
        get_address(cell),
        items,
        n,
    )


def _make_contiguous(result: Tensor) -> Tensor:
    """``result`` itself if the kernel can write into it, else memory to be copied from."""
    return (
        result if result.is_contiguous() else torch.empty_like(result, memory_format=torch.contiguous_format)
    )
