"""Cholesky factorisations with pivoting: one kernel for small matrices, a launch per pivot for others.

See ``kernels/pstrf_batch.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime.items import Launch, get_address

#: Entries of a matrix that a block has where a step is a launch, and threads of a block.
_SLICE = 32
_THREADS = 256

#: Bytes of a candidate for the next pivot, by bytes of a number.
_CANDIDATE = {4: 16, 8: 24}


def plan_factorisation(
    L: Tensor, pivots: Tensor, rank: Tensor, A: Tensor, tol: float | None, cell: Tensor | None
) -> Iterator[Launch]:
    """Yield the launches that factorise the lower triangles of A, (items, n, n), not empty.

    L: (items, n, most), any strides; pivots: (items, n) and rank: (items,), contiguous. The workspace lives
    as long as the iterator.
    """
    items, n, most = L.shape
    F = torch.empty((items, most, n), dtype=A.dtype, device=A.device)
    least = -1.0 if tol is None else float(tol)
    if n > _thresholds.PSTRF_IN_BLOCK:
        yield from _plan_steps(L, pivots, rank, A, F, least, cell)
        return
    threads = min(_THREADS, -(-n // 32) * 32)
    size = A.element_size()
    yield (
        "pstrf_batch", "pstrf_small<{T}>", A, (items,), threads,
        threads // 32 * _CANDIDATE[size] + n * (size + 4),
        A.data_ptr(), *A.stride(), L.data_ptr(), *L.stride(), pivots.data_ptr(), rank.data_ptr(),
        F.data_ptr(), least, get_address(cell), n, most,
    )  # fmt: skip


def _plan_steps(
    L: Tensor, pivots: Tensor, rank: Tensor, A: Tensor, F: Tensor, tol: float, cell: Tensor | None
) -> Iterator[Launch]:
    """``plan_factorisation`` with a launch per pivot."""
    items, n, most = L.shape
    slices, size = -(-n // _SLICE), A.element_size()
    remainders = torch.empty((n + 1, items), dtype=A.dtype, device=A.device)
    least = remainders[n].data_ptr()
    places = torch.empty((items, n), dtype=torch.int32, device=A.device)
    # Two arrays of candidates, which take turns.
    candidates = torch.empty((2, items * slices * _CANDIDATE[size]), dtype=torch.uint8, device=A.device)
    turns = [turn.data_ptr() for turn in candidates]
    item, row, column = A.stride()
    yield (
        "pstrf_batch", "pstrf_begin<{T}>", A, (slices, items), _SLICE, 0,
        A.data_ptr(), item, row + column, remainders.data_ptr(), places.data_ptr(), turns[0],
        rank.data_ptr(), n,
    )  # fmt: skip
    shared = _THREADS // 32 * _CANDIDATE[size] + _THREADS * size
    fixed = (
        A.data_ptr(), item, row, column, F.data_ptr(), remainders.data_ptr(), places.data_ptr()
    )  # fmt: skip
    for k in range(most):
        yield (
            "pstrf_batch", "pstrf_step<{T}>", A, (slices, items), _THREADS, shared,
            *fixed, turns[k % 2], turns[1 - k % 2], rank.data_ptr(), least, tol, get_address(cell),
            k, most, n,
        )  # fmt: skip
    yield (
        "pstrf_batch", "pstrf_end<{T}>", A, (slices, -(-most // _SLICE), items), _THREADS,
        _SLICE * (_SLICE + 1) * size,
        L.data_ptr(), *L.stride(), pivots.data_ptr(), F.data_ptr(), places.data_ptr(), most, n,
    )  # fmt: skip


def plan_vjp_begin(M: Tensor, G: Tensor, L: Tensor, gL: Tensor, rank: Tensor) -> Launch:
    """M, G := the columns of L and gL that were computed, M with ones on its diagonal for the others.

    L, gL: (items, n, n), any strides; the rest is contiguous. Above the diagonal M and G become zero.
    """
    return (
        "pstrf_batch", "pstrf_vjp_begin<{T}>", L, (-(-M.numel() // _THREADS),), _THREADS, 0,
        M.data_ptr(), G.data_ptr(), L.data_ptr(), *L.stride(), gL.data_ptr(), *gL.stride(),
        rank.data_ptr(), L.shape[-1], M.numel(),
    )  # fmt: skip


def plan_vjp_end(gA: Tensor, P: Tensor, pivots: Tensor) -> Launch:
    """gA[p_i, p_j] := P_ij for the pivots p; all are contiguous."""
    return (
        "pstrf_batch", "pstrf_vjp_end<{T}>", P, (-(-P.numel() // _THREADS),), _THREADS, 0,
        gA.data_ptr(), P.data_ptr(), pivots.data_ptr(), P.shape[-1], P.numel(),
    )  # fmt: skip
