"""gemm2: the matrix product of two matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import (
    allocate_matrix,
    broadcast_batch,
    check_factor,
    check_matrix,
    check_same_kind,
    expand_batch,
    is_shared,
)
from lapgrad._torch.multilinear import make_jvp
from lapgrad._torch.private import reshape_fresh


def gemm2(
    A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0
) -> Tensor:
    """Matrix product: C = alpha ta(A) tb(B).

    Args:
        A: (*batch, m, k), or (*batch, k, m) with ``transpose_a=True``.
        B: (*batch, k, n), or (*batch, n, k) with ``transpose_b=True``. Leading dimensions broadcast.
        transpose_a: Multiply A^T.
        transpose_b: Multiply by B^T.
        alpha: Scale factor.

    Returns:
        C, (*batch, m, n).

    Raises:
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = alpha gC tb(B)^T, gB = alpha ta(A)^T gC, transposed as A and B are. Saves A when B needs a
        gradient, and B when A does.

    Memory:
        forward 1, backward 1
        In units of the result, and of the gradients of A and B together.

    Cost:
        forward 2 m n k, backward 4 m n k flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> lapgrad.gemm2(A, A, transpose_a=True)
        tensor([[10., 14.],
                [14., 20.]])
    """
    if not is_compiling() and (shortcut := find_shortcut("gemm2_shortcut")):
        C: Tensor | None = shortcut(A, B, transpose_a, transpose_b, alpha)
        if C is not None:
            return C
    A, B = check_matrix("gemm2", "A", A), check_matrix("gemm2", "B", B)
    check_same_kind("gemm2", A=A, B=B)
    if A.shape[-2 if transpose_a else -1] != B.shape[-1 if transpose_b else -2]:
        raise _errors.shapes_do_not_fit("gemm2", {"A": A, "B": B}, "the product ta(A) tb(B) must exist")
    alpha = check_factor("gemm2", "alpha", alpha)
    if alpha != 1.0 and is_compiling():
        # A number in the call would be compiled in, and every new value compiled again.
        return _align_operands(A, B, transpose_a, transpose_b, 1.0) * alpha
    return _align_operands(A, B, transpose_a, transpose_b, alpha)


def _align_operands(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    if A.shape[:-2] == B.shape[:-2]:
        return operator.call(A, B, transpose_a, transpose_b, alpha)
    batch = broadcast_batch("gemm2", A=A, B=B)
    if is_shared(B) and not transpose_a:
        # One B for a batch of A is one product with more rows, and a gradient of B without a batch.
        m, k = A.shape[-2:]
        rows = A.reshape(math.prod(batch) * m, k)
        C = operator.call(rows, B.reshape(B.shape[-2:]), False, transpose_b, alpha)
        return reshape_fresh(C, (*batch, m, C.shape[-1]))
    return operator.call(expand_batch(A, batch), expand_batch(B, batch), transpose_a, transpose_b, alpha)


def _multiply(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    C = _fake(A, B, transpose_a, transpose_b, alpha)
    lookup("gemm", A)(C, A, B, transpose_a, transpose_b, alpha, 0.0)
    return C


def _fake(A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    return allocate_matrix(A, A.shape[-1 if transpose_a else -2], B.shape[-2 if transpose_b else -1])


def _compute_first_vjp(B: Tensor, gC: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    """gA of C = alpha ta(A) tb(B): gC tb(B)^T, or its transpose tb(B) gC^T."""
    if transpose_a:
        return operator.call(B, gC, transpose_b, True, alpha)
    return operator.call(gC, B, False, not transpose_b, alpha)


def _compute_second_vjp(A: Tensor, gC: Tensor, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    """gB of C = alpha ta(A) tb(B): ta(A)^T gC, or its transpose gC^T ta(A)."""
    if transpose_b:
        return operator.call(gC, A, True, transpose_a, alpha)
    return operator.call(A, gC, not transpose_a, False, alpha)


def compute_vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gC: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """gA and gB of C = alpha ta(A) tb(B); the flags are transpose_a, transpose_b and alpha."""
    A, B = saved
    if needs[0] and needs[1] and not is_compiling() and (shortcut := find_shortcut("gemm2_vjp_shortcut")):
        both: tuple[Tensor, Tensor] | None = shortcut(A, B, gC, *flags)
        if both is not None:
            return both
    gA = _compute_first_vjp(B, gC, *flags) if needs[0] else None
    gB = _compute_second_vjp(A, gC, *flags) if needs[1] else None
    return gA, gB


_A, _B = 0, 1

operator: Operator = define(
    "gemm2",
    "(Tensor A, Tensor B, bool transpose_a, bool transpose_b, float alpha) -> Tensor",
    kernel=_multiply,
    fake=_fake,
    formulas=Formulas(saves=((_B,), (_A,)), vjp=compute_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=make_shortcut("gemm2"),
)


def multiply(
    A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0
) -> Tensor:
    """Return alpha ta(A) tb(B), with derivatives; for formulas, whose operands need no checks."""
    C: Tensor = operator.call(A, B, transpose_a, transpose_b, alpha)
    return C
