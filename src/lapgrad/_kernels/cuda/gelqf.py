"""gelqf: LQ factorisation, on CUDA: batches by Householder in own kernels, large ones as in ``_lq.py``."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _sizes
from lapgrad._kernels.cuda.large.lq import by_cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.stream import on_its_device
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch
from lapgrad._kernels.cuda.small import gelqf_wide as _gelqf_wide
from lapgrad._kernels.torch import gelqf as _fallback

_prepared = threading.local()


@on_its_device
def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    """As ``_fallback.gelqf``. The diagonal of L is positive with either flag, as Cholesky's way leaves it."""
    if _gelqf_batch.serves(A):
        return _gelqf_batch.gelqf(L, Q, A, True)
    if _gelqf_wide.serves(A):
        return _gelqf_wide.gelqf(L, Q, A)
    m, n = A.shape[-2:]
    rank, items = min(m, n), A.shape[:-2].numel()
    serves = rank >= _sizes.LARGE and _sizes.one_by_one(items, rank) and not _stream.being_captured()
    serves = serves and _stream.multiplies_float64_fast(A.get_device())
    if not serves or not (Q is None or _device.storable(Q)):
        return _fallback.gelqf(L, Q, A, True)
    _prepare_torchs_driver(A)
    matrices, factors, rows = (None if X is None else _device.flat(X) for X in (A, L, Q))
    assert matrices is not None
    assert factors is not None
    for item in range(items):
        found = by_cholesky(matrices[item, :rank], None if rows is None else rows[item])
        if found is None:
            return _fallback.gelqf(L, Q, A, True)
        factor, orthogonal = found
        factors[item, :rank] = factor
        if rows is not None and rows.dtype != orthogonal.dtype:
            rows[item] = orthogonal
        if m > n:
            factors[item, rank:] = matrices[item, rank:].to(orthogonal.dtype) @ orthogonal.mT
    return None


def _prepare_torchs_driver(like: Tensor) -> None:
    """Makes torch's handle of cuSOLVER: its driver serves while a graph is captured, and then it is too late.

    Who captures a graph has called what is in it before: here, in the same thread.
    """
    devices: set[int] | None = getattr(_prepared, "devices", None)
    if devices is None:
        devices = _prepared.devices = set()
    if like.get_device() not in devices:
        torch.linalg.qr(like.new_ones(1, 1))
        devices.add(like.get_device())


@on_its_device
def dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    return _gelqf_batch.dependent_row(L, tolerance, relative_to_largest)


@on_its_device
def dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    return _gelqf_batch.dependent_row_later(L, tolerance, relative_to_largest)


@on_its_device
def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    """gA := L^-T (gQ + Z Q), Z = copyltu(L^T gL - gQ Q^T), for wide and square matrices."""
    if _gelqf_batch.serves_vjp(Q, L):
        _gelqf_batch.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    rank, items = Q.shape[-2], Q.shape[:-2].numel()
    wide = L.shape[-2] == rank and _sizes.solves_by_blocks(rank, Q.shape[-1])
    if not wide or not _sizes.one_by_one(items, rank) or not _device.storable(gA):
        _fallback.gelqf_vjp(gA, Q, L, gQ, gL)
        return
    of_q, of_l = (None if gradient is None else _device.readable(gradient) for gradient in (gQ, gL))
    cut = _sizes.cut_of_long_product(Q.shape[-1])
    _device.gelqf_vjp(gA, _device.readable(Q), _device.readable(L), of_q, of_l, _sizes.SOLVE_BLOCK, cut)


@on_its_device
def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    """The same with Q = L^-1 A."""
    rank = L.shape[-1]
    wide = L.shape[-2] == rank
    if wide and _gelqf_batch.serves_vjp(A, L):
        _gelqf_batch.gelqf_l_vjp(gA, A, L, gL)
        return
    if (
        not wide
        or not _sizes.one_by_one(A.shape[:-2].numel(), rank)
        or not _sizes.solves_by_blocks(rank, A.shape[-1])
        or not A.numel()
    ):
        _fallback.gelqf_l_vjp(gA, A, L, gL)
        return
    Q = A.clone(memory_format=torch.contiguous_format)
    _device.solve(Q, _device.readable(L), "l", _sizes.SOLVE_BLOCK)
    gelqf_vjp(gA, Q, L, None, gL)
