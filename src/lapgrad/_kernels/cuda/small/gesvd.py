"""Singular value decompositions of small matrices and their gradient: own kernels.

See ``kernels/gesvd_batch.cu`` and ``kernels/gesvd_vjp_batch.cu``.
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

#: (rows, columns, lanes that share a pair of rows, threads of a block), for at most as many rows and columns,
#: the shorter side counted as rows. A thread has columns / lanes numbers of each of two rows, and of their
#: rotations rows / lanes: few enough for its registers, enough to pay for a sum over the lanes. Up to 16 rows
#: rows / 2 * lanes threads are at most one warp, which needs no barriers, and blocks have several matrices.
_KINDS = (
    (8, 8, 2, 64),
    (8, 64, 8, 64),
    (16, 16, 4, 64),
    (16, 64, 4, 64),
    (32, 32, 4, 64),
    (32, 64, 8, 128),
    (64, 64, 8, 256),
)

#: (largest side, rows and columns of the grid of threads for one gradient, threads of a block). A thread has
#: 4 x 4 or 4 x 2 entries of each product.
_GRADIENT_KINDS = ((8, 4, 4, 64), (16, 4, 8, 64), (32, 8, 8, 64), (64, 16, 16, 256))


def serves(A: Tensor) -> bool:
    """Whether the kernel takes these matrices; their strides do not matter."""
    return A.numel() > 0 and max(A.shape[-2:]) <= _thresholds.GESVD_SMALL


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, for operands that ``serves`` accepts."""
    if U is None or V is None:
        U = V = None
    results = [result for result in (S, U, V) if result is not None]
    written = [make_contiguous(result) for result in results]
    values, left, right = written if len(written) == 3 else (written[0], None, None)
    cell = _items.get_status_cell(A)
    _launch.launch(*plan_decomposition(values, left, right, flatten_batch(A), cell))
    for result, filled in zip(results, written, strict=True):
        if filled is not result:
            result.copy_(filled)
    return _items.read_first_failure(cell)


def plan_decomposition(
    S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor, cell: Tensor | None
) -> Launch:
    """Return the launch for A with one batch dimension and contiguous results."""
    items, m, n = A.shape
    k, width, tall = min(m, n), max(m, n), m > n
    rows, columns, lanes, threads = next(kind for kind in _KINDS if k <= kind[0] and width <= kind[1])
    team = rows // 2 * lanes
    matrices, vectors = threads // team, U is not None and V is not None
    exchanged = 2 * team * (columns + (rows if vectors else 0)) // lanes if team > 32 else 0
    step, row, column = A.stride()
    short, long = (V, U) if tall else (U, V)
    return (
        "gesvd_batch",
        f"gesvd<{{T}}, {rows}, {columns}, {lanes}, {'true' if vectors else 'false'}>",
        A,
        (-(-items // matrices),),
        threads,
        (matrices * (rows + max(rows, columns)) + exchanged) * A.element_size(),
        A.data_ptr(),
        step,
        *((column, row) if tall else (row, column)),
        S.data_ptr(),
        get_address(short),
        get_address(long),
        get_address(cell),
        items,
        k,
        width,
        int(tall),
    )


def serves_vjp(U: Tensor, V: Tensor) -> bool:
    """Whether the kernel of the gradient takes factors of this shape; strides do not matter."""
    longest = max(U.shape[-1], V.shape[-1])
    return U.numel() > 0 and longest <= _thresholds.SPECTRAL_VJP_SMALL


def gesvd_vjp(
    gA: Tensor,
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Tensor | None:
    """Same as in ``_kernels.torch``, for operands that it serves. Only the first ambiguous item is marked."""
    written = make_contiguous(gA)
    values, slope = S.contiguous(), None if gS is None else gS.contiguous()
    many, zeros = U.numel() >= _thresholds.SPECTRAL_VJP_UNWAITED, U.shape[-1] != V.shape[-1]
    check = TieCheck(values, tol, zeros=zeros, searches=many)
    gU, gV = (None if given is None else flatten_batch(given) for given in (gU, gV))
    plan = plan_vjp(
        flatten_batch(written),
        flatten_batch(U),
        flatten_batch(V),
        gU,
        gV,
        values,
        slope,
        degeneracy,
        tol,
        check.cell,
    )
    _launch.launch(*plan)
    if written is not gA:
        gA.copy_(written)
    found = check.read()
    if found is None:
        return None
    ambiguous = torch.zeros(S.shape[:-1], dtype=torch.bool)
    ambiguous.view(-1)[found[0]] = True
    return ambiguous


def plan_vjp(
    gA: Tensor,
    U: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gV: Tensor | None,
    S: Tensor,
    gS: Tensor | None,
    degeneracy: str,
    tol: float,
    cell: Tensor | None,
) -> Launch:
    """Return the launch that computes the gradient: matrices with one batch dimension, contiguous values."""
    if U.shape[-1] > V.shape[-1]:
        gA, U, V, gU, gV = gA.mT, V, U, gV, gU
    items, k, n = V.shape
    side, down, across, threads = next(kind for kind in _GRADIENT_KINDS if n <= kind[0])
    matrices = threads // (down * across)
    return (
        "gesvd_vjp_batch",
        f"gesvd_vjp<{{T}}, {side}, {down}, {across}>",
        U,
        (-(-items // matrices),),
        threads,
        matrices * (3 * k * (k | 1) + 2 * k * (n | 1) + 6 * k + 32) * U.element_size(),
        *_pack_operand(U),
        *_pack_operand(V),
        S.data_ptr(),
        *_pack_operand(gU),
        get_address(gS),
        *_pack_operand(gV),
        POLICY_NUMBERS[degeneracy],
        float(tol),
        *_pack_operand(gA),
        get_address(cell),
        items,
        k,
        n,
    )


def _pack_operand(A: Tensor | None) -> tuple[int, ...]:
    """Address and strides of A; zeros for None."""
    return (0, 0, 0, 0) if A is None else (A.data_ptr(), *A.stride())


def make_contiguous(result: Tensor) -> Tensor:
    """``result`` itself if the kernel can write into it, else memory to be copied from."""
    if result.is_contiguous():
        return result
    return torch.empty_like(result, memory_format=torch.contiguous_format)
