"""potrf: Cholesky factorisation, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, hand_over, make_writable
from lapgrad._kernels.native import core


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    failure: tuple[int, int] | None
    if info is None and A.is_contiguous() and L.is_contiguous():
        # A shortcut: for a 4 x 4 matrix the steps below would take longer than the factorisation.
        n = A.shape[-1]
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        count = 1 if A.dim() == 2 else count_items(A)
        read, written = (A.data_ptr(), square, row, col), (L.data_ptr(), square, row, col)
        failure = core.potrf(A.element_size(), read, written, count, n, 0)
        return failure
    source, read = hand_over(A, not lower)
    target, written = hand_over(make_writable(L), not lower)
    status = info if info is None or info.is_contiguous() else torch.empty(info.shape, dtype=info.dtype)
    failure = core.potrf(
        A.element_size(),
        read,
        written,
        count_items(source),
        A.shape[-1],
        0 if status is None else status.data_ptr(),
    )
    if target is not L:
        L.copy_(target)
    if status is not info and info is not None and status is not None:
        info.copy_(status)
    return failure


def potrf_vjp(gA: Tensor, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None) -> None:
    if info is None and L.is_contiguous() and gL.is_contiguous():
        n = L.shape[-1]
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        factor, cotangent = (L.data_ptr(), square, row, col), (gL.data_ptr(), square, row, col)
        gradient = gA.data_ptr(), square, row, col
        core.potrf_vjp(L.element_size(), factor, cotangent, gradient, count_items(L), n, 0)
        return
    L, factor = hand_over(L, not lower)
    gL, cotangent = hand_over(gL, not lower)
    _, gradient = hand_over(gA, not lower)
    status = None if info is None else info.contiguous()
    core.potrf_vjp(
        L.element_size(),
        factor,
        cotangent,
        gradient,
        count_items(L),
        L.shape[-1],
        0 if status is None else status.data_ptr(),
    )
