"""syrk: the product of a matrix with its own transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, allocate_matrix, check_factor, check_matrix
from lapgrad.ops import gemm2 as _gemm2


def syrk(A: Tensor, *, transpose: bool = False, alpha: float = 1.0) -> Tensor:
    """Product of a matrix with its transpose: B = alpha A A^T, or B = alpha A^T A with ``transpose=True``.

    Args:
        A: (*batch, n, k), or (*batch, k, n) with ``transpose=True``.
        transpose: Multiply A^T by A.
        alpha: Scale factor.

    Returns:
        B, (*batch, n, n), symmetric to the last bit.

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of float32 or float64 matrices.

    Gradient:
        gA = alpha (gB + gB^T) A, or alpha A (gB + gB^T): one product. Saves A.

    Memory:
        forward 1, backward 2
        In units of the result, and of the gradient of a square A: the gradient and gB + gB^T, which has the
        size of the result. Besides: one buffer in the backward when alpha is not 1.

    Cost:
        forward n^2 k (half of a full product), backward 2 n^2 k flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.syrk(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[ 5., 11.],
                [11., 25.]])
    """
    # If alpha is a tensor, so is the comparison; check_factor refuses it below.
    is_unscaled = (alpha == 1.0) is True
    if is_unscaled and not is_compiling() and (shortcut := find_shortcut("syrk_shortcut")):
        product: Tensor | None = shortcut(A, transpose)
        if product is not None:
            return product
    A, alpha = check_matrix("syrk", "A", A), check_factor("syrk", "alpha", alpha)
    B = operator.call(A, bool(transpose))
    return B if alpha == 1.0 else B.mul_(alpha)


def _multiply(A: Tensor, transpose: bool) -> Tensor:
    B = _fake(A, transpose)
    lookup("syrk", A)(B, A, transpose)
    return B


def _fake(A: Tensor, transpose: bool) -> Tensor:
    n = A.shape[-1 if transpose else -2]
    return allocate_matrix(A, n, n)


def _compute_vjp(A: Tensor, gB: Tensor, transpose: bool) -> Tensor:
    gA = allocate_like(A)
    lookup("syrk_vjp", A)(gA, A, gB, transpose)
    return gA


def _compute_vjp_composite(A: Tensor, gB: Tensor, transpose: bool) -> Tensor:
    """gA = (gB + gB^T) A, or A (gB + gB^T)."""
    both = gB + gB.mT
    first, second = (A, both) if transpose else (both, A)
    return _gemm2.multiply(first, second)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor) -> tuple[Tensor]:
    (A,), (transpose,) = saved, flags
    return (operator_vjp.call(A, gB, transpose),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    """dB = dA A^T + (dA A^T)^T."""
    (A,), (transpose,) = saved, flags
    half = _gemm2.operator.call(dA, A, transpose, not transpose, 1.0)
    return half + half.mT


_A = 0

operator_vjp = define_fused(
    "syrk_vjp",
    "(Tensor A, Tensor gB, bool transpose) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda A, gB, transpose: A.new_empty(A.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("syrk_vjp"),
)

operator = define(
    "syrk",
    "(Tensor A, bool transpose) -> Tensor",
    kernel=_multiply,
    fake=_fake,
    formulas=Formulas(saves=((_A,),), vjp=_vjp, jvp=_jvp),
    shortcut=make_shortcut("syrk"),
)
