"""gemmt: one triangle of a matrix product."""

from __future__ import annotations

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
)
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import trmm as _trmm


def gemmt(
    A: Tensor,
    B: Tensor,
    *,
    lower: bool = True,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """One triangle of a matrix product: C = alpha tri(ta(A) tb(B)); the other triangle is zero.

    Args:
        A: (*batch, n, k), or (*batch, k, n) with ``transpose_a=True``.
        B: (*batch, k, n), or (*batch, n, k) with ``transpose_b=True``. Leading dimensions broadcast.
        lower: Compute the lower triangle (with the diagonal), else the upper one.
        transpose_a: Multiply A^T.
        transpose_b: Multiply by B^T.
        alpha: Scale factor.

    Returns:
        C, (*batch, n, n).

    Raises:
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = alpha tri(gC) tb(B)^T, gB = alpha ta(A)^T tri(gC): triangular products (trmm), transposed as A
        and B are. Saves A when B needs a gradient, and B when A does.

    Memory:
        forward 1, backward 1
        In units of the result, and of the gradients of A and B together.

    Cost:
        forward n^2 k, backward 2 n^2 k flops: half of a full product.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> lapgrad.gemmt(A, A, transpose_b=True)
        tensor([[ 5.,  0.],
                [11., 25.]])
    """
    if not is_compiling() and (shortcut := find_shortcut("gemmt_shortcut")):
        C: Tensor | None = shortcut(A, B, lower, transpose_a, transpose_b, alpha)
        if C is not None:
            return C
    A, B = check_matrix("gemmt", "A", A), check_matrix("gemmt", "B", B)
    check_same_kind("gemmt", A=A, B=B)
    rows, inner = (A.shape[-1], A.shape[-2]) if transpose_a else (A.shape[-2], A.shape[-1])
    inner_b, columns = (B.shape[-1], B.shape[-2]) if transpose_b else (B.shape[-2], B.shape[-1])
    if inner != inner_b or rows != columns:
        wanted = "the product ta(A) tb(B) of n x k and k x n must exist and be square"
        raise _errors.shapes_do_not_fit("gemmt", {"A": A, "B": B}, wanted)
    lower, transpose_a, transpose_b = bool(lower), bool(transpose_a), bool(transpose_b)
    alpha = check_factor("gemmt", "alpha", alpha)
    if A.shape[:-2] != B.shape[:-2]:
        batch = broadcast_batch("gemmt", A=A, B=B)
        A, B = expand_batch(A, batch), expand_batch(B, batch)
    if alpha != 1.0 and is_compiling():
        # A number in the call would be compiled in, and every new value compiled again.
        return operator.call(A, B, lower, transpose_a, transpose_b, 1.0) * alpha
    return operator.call(A, B, lower, transpose_a, transpose_b, alpha)


def _multiply(
    A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float
) -> Tensor:
    n = A.shape[-1] if transpose_a else A.shape[-2]
    C = allocate_matrix(A, n, n)
    lookup("gemmt", A)(C, A, B, lower, transpose_a, transpose_b, alpha)
    return C


def _fake(A: Tensor, B: Tensor, lower: bool, transpose_a: bool, transpose_b: bool, alpha: float) -> Tensor:
    n = A.shape[-1] if transpose_a else A.shape[-2]
    return allocate_matrix(A, n, n)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gC: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """With G = alpha tri(gC): the gradient of ta(A) is G tb(B)^T, that of tb(B) is ta(A)^T G."""
    (A, B), (lower, transpose_a, transpose_b, alpha) = saved, flags
    if (
        needs[0]
        and needs[1]
        and alpha == 1.0
        and not is_compiling()
        and (shortcut := find_shortcut("gemmt_vjp_shortcut"))
    ):
        both: tuple[Tensor, Tensor] | None = shortcut(A, B, gC, lower, transpose_a, transpose_b)
        if both is not None:
            return both
    gA = gB = None
    if needs[0]:
        factor = B.mT if transpose_a == transpose_b else B
        gA = _scale(_trmm.operator.call(gC, factor, lower, transpose_a, transpose_a), alpha)
    if needs[1]:
        factor = A.mT if transpose_a == transpose_b else A
        gB = _scale(_trmm.operator.call(gC, factor, lower, transpose_b, not transpose_b), alpha)
    return gA, gB


def _scale(fresh: Tensor, alpha: float) -> Tensor:
    return fresh if alpha == 1.0 else fresh.mul_(alpha)


_A, _B = 0, 1

operator: Operator = define(
    "gemmt",
    "(Tensor A, Tensor B, bool lower, bool transpose_a, bool transpose_b, float alpha) -> Tensor",
    kernel=_multiply,
    fake=_fake,
    formulas=Formulas(saves=((_B,), (_A,)), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=make_shortcut("gemmt"),
)


def multiply(
    A: Tensor,
    B: Tensor,
    *,
    lower: bool = True,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """Return one triangle of alpha ta(A) tb(B), with derivatives; for formulas, which need no checks."""
    C: Tensor = operator.call(A, B, lower, transpose_a, transpose_b, alpha)
    return C
