"""gemm: the matrix product of two matrices, added to a third."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define
from lapgrad._torch.layout import broadcast_batch, check_factor, check_matrix, check_same_kind, expand_batch
from lapgrad.ops import gemm2 as _gemm2


def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    overwrite: bool = False,
) -> Tensor:
    """Matrix product added to a matrix: D = alpha ta(A) tb(B) + beta C.

    Args:
        A: (*batch, m, k), or (*batch, k, m) with ``transpose_a=True``.
        B: (*batch, k, n), or (*batch, n, k) with ``transpose_b=True``.
        C: (*batch, m, n). Leading dimensions broadcast.
        transpose_a: Multiply A^T.
        transpose_b: Multiply by B^T.
        alpha: Scale factor of the product.
        beta: Scale factor of C. With 0, C is not read.
        overwrite: Leave the result in the memory of ``C`` and return ``C``.

    Returns:
        D, (*batch, m, n).

    Raises:
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = alpha gD tb(B)^T, gB = alpha ta(A)^T gD, transposed as A and B are, and gC = beta gD. Saves A
        when B needs a gradient, and B when A does.

    Memory:
        forward 1 (0 with overwrite), backward 1
        In units of the result, and of the gradients of A, B and C together.

    Cost:
        forward 2 m n k, backward 4 m n k flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> lapgrad.gemm(A, torch.eye(2), torch.ones(2, 2), beta=10.0)
        tensor([[11., 12.],
                [13., 14.]])
    """
    if not overwrite and not is_compiling() and (shortcut := find_shortcut("gemm_shortcut")):
        D: Tensor | None = shortcut(A, B, C, transpose_a, transpose_b, alpha, beta)
        if D is not None:
            return D
    A, B, C = check_matrix("gemm", "A", A), check_matrix("gemm", "B", B), check_matrix("gemm", "C", C)
    check_same_kind("gemm", A=A, B=B, C=C)
    rows, inner = (A.shape[-1], A.shape[-2]) if transpose_a else (A.shape[-2], A.shape[-1])
    inner_b, columns = (B.shape[-1], B.shape[-2]) if transpose_b else (B.shape[-2], B.shape[-1])
    if inner != inner_b or C.shape[-2] != rows or C.shape[-1] != columns:
        wanted = "the product ta(A) tb(B) must exist and have the rows and columns of C"
        raise _errors.shapes_do_not_fit("gemm", {"A": A, "B": B, "C": C}, wanted)
    alpha, beta = check_factor("gemm", "alpha", alpha), check_factor("gemm", "beta", beta)
    if not A.shape[:-2] == B.shape[:-2] == C.shape[:-2]:
        batch = broadcast_batch("gemm", A=A, B=B, C=C)
        if overwrite and C.shape[:-2] != batch:
            raise _errors.overwritten_broadcast("gemm", "C", C.shape, (*batch, rows, columns))
        A, B, C = expand_batch(A, batch), expand_batch(B, batch), expand_batch(C, batch)
    if is_compiling() and not overwrite:
        # A number in the call would be compiled in, and every new value compiled again.
        scaled = C if beta == 1.0 else torch.zeros_like(C) if beta == 0.0 else C * beta
        return operator.call(A if alpha == 1.0 else A * alpha, B, scaled, transpose_a, transpose_b, 1.0, 1.0)
    door = operator.overwrite if overwrite else operator.call
    return door(A, B, C, transpose_a, transpose_b, alpha, beta)


def _multiply(
    A: Tensor, B: Tensor, C: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> Tensor:
    D = C.clone(memory_format=torch.contiguous_format)
    lookup("gemm", A)(D, A, B, transpose_a, transpose_b, alpha, beta)
    return D


def _multiply_in_place(
    A: Tensor, B: Tensor, C: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> None:
    lookup("gemm", A)(C, A, B, transpose_a, transpose_b, alpha, beta)


def multiply_into(out: Tensor, A: Tensor, B: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    """out := alpha A B + beta out for matrices (or batches of one shape), without checks and autograd.

    ``torch.mm`` in its place would take BLAS, which is slower than the core on some CPUs.
    """
    lookup("gemm", out)(out, A, B, transpose_a=False, transpose_b=False, alpha=alpha, beta=beta)
    return out


def _fake(
    A: Tensor, B: Tensor, C: Tensor, transpose_a: bool, transpose_b: bool, alpha: float, beta: float
) -> Tensor:
    return C.new_empty(C.shape)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gD: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """As for gemm2, and gC = beta gD."""
    *product_flags, beta = flags
    gA, gB = _gemm2.compute_vjp(needs, saved, product_flags, gD)
    gC = None if not needs[2] else gD if beta == 1.0 else gD * beta
    return gA, gB, gC


def _jvp(
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    dA: Tensor | None,
    dB: Tensor | None,
    dC: Tensor | None,
) -> Tensor:
    """dD = alpha (ta(dA) tb(B) + ta(A) tb(dB)) + beta dC."""
    (A, B), (transpose_a, transpose_b, alpha, beta) = saved, flags
    product_flags = (transpose_a, transpose_b, alpha)
    terms = []
    if dA is not None:
        terms.append(_gemm2.operator.call(dA, B, *product_flags))
    if dB is not None:
        terms.append(_gemm2.operator.call(A, dB, *product_flags))
    if dC is not None:
        terms.append(dC * beta)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


_A, _B, _C = 0, 1, 2

operator = define(
    "gemm",
    "(Tensor A, Tensor B, Tensor C, bool transpose_a, bool transpose_b, float alpha, float beta) -> Tensor",
    kernel=_multiply,
    fake=_fake,
    formulas=Formulas(saves=((_B,), (_A,), ()), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_C, "C", _multiply_in_place),
    shortcut=make_shortcut("gemm"),
)
