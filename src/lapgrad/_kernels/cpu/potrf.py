"""potrf: Cholesky factorisation, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable, transposed, writable
from lapgrad._kernels.native import core


def potrf(L: Tensor, A: Tensor, lower: bool, info: Tensor | None) -> tuple[int, int] | None:
    failure: tuple[int, int] | None
    if info is None and A.is_contiguous() and L.is_contiguous():
        # Without the detours below: for a 4 x 4 matrix they cost more than the factorisation.
        n = A.shape[-1]
        square, row, col = (n * n, n, 1) if lower else (n * n, 1, n)
        count = 1 if A.dim() == 2 else items(A)
        failure = core.potrf(
            A.element_size(), A.data_ptr(), square, row, col, L.data_ptr(), square, row, col, count, n, 0
        )
        return failure
    source, target = readable(A), writable(L)
    read, written = operand(source), operand(target)
    if not lower:
        read, written = transposed(read), transposed(written)
    status = info if info is None or info.is_contiguous() else torch.empty(info.shape, dtype=info.dtype)
    failure = core.potrf(
        A.element_size(),
        *read,
        *written,
        items(A),
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
        strides = (n * n, n, 1) if lower else (n * n, 1, n)
        operands = L.data_ptr(), *strides, gL.data_ptr(), *strides, gA.data_ptr(), *strides
        core.potrf_vjp(L.element_size(), *operands, items(L), n, 0)
        return
    L, gL = readable(L), readable(gL)
    factor, cotangent, gradient = operand(L), operand(gL), operand(gA)
    if not lower:
        factor, cotangent, gradient = transposed(factor), transposed(cotangent), transposed(gradient)
    status = None if info is None else info.contiguous()
    core.potrf_vjp(
        L.element_size(),
        *factor,
        *cotangent,
        *gradient,
        items(L),
        L.shape[-1],
        0 if status is None else status.data_ptr(),
    )
