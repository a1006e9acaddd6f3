"""inverse: the inverse of a square matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import gemm2 as _gemm2

_take_shortcut = make_shortcut("inverse")


def inverse(A: Tensor, *, overwrite: bool = False) -> Tensor:
    """Inverse of a square matrix: B = A^-1, so that A B = B A = I.

    By LU factorisation with partial pivoting. A matrix that is singular up to rounding has an inverse of
    large numbers; only one with an exact zero pivot is refused. To solve equations with a symmetric positive
    definite or a triangular matrix, use ``potrf`` and ``trsm``.

    Args:
        A: (*batch, n, n).
        overwrite: Leave the inverse in the memory of ``A`` and return ``A``.

    Returns:
        B, (*batch, n, n).

    Raises:
        SingularMatrixError: Names the first item with an exact zero pivot, and the pivot.
        NonFiniteError: A NaN or an infinity was met, or the inverse overflows. In both cases, with
            ``overwrite=True``, the items that failed have been replaced by the identity and the others by
            their inverses.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = -B^T gB B^T. Forward mode: dB = -B dA B. Saves B.

    Memory:
        forward 1 (0 with overwrite), backward 2
        Besides: the n row exchanges.

    Cost:
        forward 2 n^3, backward 4 n^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.inverse(torch.tensor([[2.0, 0.0], [1.0, 0.5]]))
        tensor([[ 0.5000,  0.0000],
                [-1.0000,  2.0000]])
    """
    if not overwrite and not is_compiling():
        B: Tensor | None = _take_shortcut(A)
        if B is not None:
            return B
    A = check_square_matrix("inverse", "A", A)
    return operator.overwrite(A) if overwrite else operator.call(A)


def _invert(A: Tensor) -> Tensor:
    B = allocate_like(A)
    _invert_into(B, A)
    return B


def _invert_in_place(A: Tensor) -> None:
    _invert_into(A, A)


def _invert_into(B: Tensor, A: Tensor) -> None:
    failure = lookup("inverse", A)(B, A)
    if failure is None:
        return
    item, status = failure
    if status > A.shape[-1]:
        raise _errors.inverse_overflows("inverse", A.shape[:-2], item)
    raise _errors.elimination_failed("inverse", A.shape[:-2], failure)


def _compute_vjp(B: Tensor, gB: Tensor) -> Tensor:
    gA = allocate_like(B)
    lookup("inverse_vjp", B)(gA, B, gB)
    return gA


def _compute_vjp_composite(B: Tensor, gB: Tensor) -> Tensor:
    """gA = -B^T gB B^T."""
    return _gemm2.multiply(_gemm2.multiply(B, gB, transpose_a=True), B, transpose_b=True, alpha=-1.0)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor) -> tuple[Tensor]:
    (B,) = saved
    return (operator_vjp.call(B, gB),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    """dB = -B dA B: the pull-back with B^T in the place of B."""
    (B,) = saved
    return _gemm2.multiply(_gemm2.multiply(B, dA), B, alpha=-1.0)


operator_vjp = define_fused(
    "inverse_vjp",
    "(Tensor B, Tensor gB) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda B, gB: B.new_empty(B.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("inverse_vjp"),
)

_A, _B = 0, 1

operator = define(
    "inverse",
    "(Tensor A) -> Tensor",
    kernel=_invert,
    fake=lambda A: A.new_empty(A.shape),
    formulas=Formulas(saves=((_B,),), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_A, "A", _invert_in_place),
    shortcut=_take_shortcut,
)
