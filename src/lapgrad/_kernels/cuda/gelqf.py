"""gelqf: LQ factorisation, on CUDA: own Householder kernels, and ``large/lq.py`` for large matrices."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import triangular_solve as _solve
from lapgrad._kernels.cuda.large.lq import factorise_by_cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch
from lapgrad._kernels.cuda.small import gelqf_panels as _gelqf_panels
from lapgrad._kernels.cuda.small import gelqf_wide as _gelqf_wide
from lapgrad._kernels.torch import gelqf as _fallback
from lapgrad._torch.precision import in_full_precision


@on_its_device
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    """Same as in ``_kernels.torch``, but the diagonal of L is positive with either flag."""
    if _gelqf_batch.serves(A):
        return _gelqf_batch.gelqf(L, Q, A, True)
    if _gelqf_wide.serves(A):
        return _gelqf_wide.gelqf(L, Q, A)
    m, n = A.shape[-2:]
    rank, items = min(m, n), A.shape[:-2].numel()
    if _gelqf_panels.serves(A) and (items > 1 or n <= _thresholds.GELQF_PANELS_ALONE):
        return _gelqf_panels.gelqf(L, Q, A)
    serves = (
        rank >= _thresholds.LARGE
        and _thresholds.serves_items_one_by_one(items, rank)
        and not _stream.is_capturing()
    )
    serves = serves and _stream.has_fast_float64(A.get_device())
    if not serves or not (Q is None or _device.is_storable(Q)):
        return _gelqf_panels.gelqf(L, Q, A) if _gelqf_panels.serves(A) else _fallback.gelqf(L, Q, A, True)
    _prepare_torch_solver(A)
    matrices, factors, rows = (None if X is None else _device.flatten_batch(X) for X in (A, L, Q))
    assert matrices is not None
    assert factors is not None
    for item in range(items):
        found = factorise_by_cholesky(matrices[item, :rank], None if rows is None else rows[item])
        if found is None:
            return _fallback.gelqf(L, Q, A, True)
        factor, orthogonal = found
        factors[item, :rank] = factor
        if rows is not None and rows.dtype != orthogonal.dtype:
            rows[item] = orthogonal
        if m > n:
            factors[item, rank:] = matrices[item, rank:].to(orthogonal.dtype) @ orthogonal.mT
    return None


class _PreparedDevices(threading.local):
    """The devices for which torch has made this thread's handle of cuSOLVER."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()


# A thread-local, because torch keeps one handle per thread.
_prepared = _PreparedDevices()


def _prepare_torch_solver(like: Tensor) -> None:
    """Make torch create its handle of cuSOLVER, if this thread has none for the device of ``like``.

    While a graph is captured torch's own factorisation is used, and a handle cannot be made then. Callers
    that capture a graph run its contents once before, in the same thread, and so call this.
    """
    if like.get_device() not in _prepared.numbers:
        torch.linalg.qr(like.new_ones(1, 1))
        _prepared.numbers.add(like.get_device())


@on_its_device
def find_dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    return _gelqf_batch.find_dependent_row(L, tolerance, relative_to_largest)


@on_its_device
def find_dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    return _gelqf_batch.find_dependent_row_later(L, tolerance, relative_to_largest)


@on_its_device
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA := L^-T (gQ + Z Q), Z = copyltu(L^T gL - gQ Q^T); a tall matrix has more rows below."""
    if L.shape[-2] > L.shape[-1] and gA.numel():
        _pull_back_tall(gA, Q, L, gQ, gL)
        return
    if _gelqf_batch.serves_vjp(Q, L):
        _gelqf_batch.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    serves = (
        0 < Q.shape[:-2].numel() <= _thresholds.MOST_ITEMS and L.shape[-2] == Q.shape[-2] and Q.numel() > 0
    )
    if not serves or not _device.is_storable(gA):
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    of_q, of_l = (None if gradient is None else _device.make_readable(gradient) for gradient in (gQ, gL))
    cut = _thresholds.choose_product_cut(Q.shape[-1])
    _device.gelqf_vjp(
        gA, _device.make_readable(Q), _device.make_readable(L), of_q, of_l, _thresholds.SOLVE_BLOCK, cut
    )


@in_full_precision
def _pull_back_tall(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """``gelqf_vjp`` of a tall matrix: rows below the square part are A2 = L2 Q.

    gA2 = gL2 Q, and L2 = A2 Q^T adds L1^-T T Q to gA1, T = K - K^T above the diagonal, K = gL2^T L2. It is
    added last: K may be large, and the part of it that is below the diagonal would have to cancel in Z.
    """
    rank = Q.shape[-2]
    first, L1 = gA[..., :rank, :], L[..., :rank, :]
    gelqf_vjp(first, Q, L1, gQ, None if gL is None else gL[..., :rank, :])
    if gL is None:
        gA[..., rank:, :].zero_()
        return
    below = gL[..., rank:, :]
    gA[..., rank:, :] = below @ Q
    K = below.mT @ L[..., rank:, :]
    moved = (K - K.mT).triu_(1) @ Q
    added = torch.empty_like(moved, memory_format=torch.contiguous_format)
    _solve.solve(added, L1, moved, lower=True, transpose=True, rightside=False, checked=False)
    first.add_(added)


@on_its_device
def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    """``gelqf_vjp`` with Q = L^-1 A and without gQ."""
    wide = L.shape[-2] == L.shape[-1]
    if wide and _gelqf_batch.serves_vjp(A, L):
        _gelqf_batch.gelqf_l_vjp(gA, A, L, gL)
        return
    if not A.numel() or A.shape[:-2].numel() > _thresholds.MOST_ITEMS:
        _fallback.gelqf_l_vjp(gA, A, L, gL)
        return
    if not wide:
        rank = L.shape[-1]
        top = torch.linalg.solve_triangular(L[..., :rank, :], A[..., :rank, :], upper=False)
        gelqf_vjp(gA, top.contiguous(), L, None, gL)
        return
    Q = A.clone(memory_format=torch.contiguous_format)
    _device.solve(Q, _device.make_readable(L), "l", _thresholds.SOLVE_BLOCK)
    gelqf_vjp(gA, Q, L, None, gL)
