"""inverse_psd: the inverse of a positive definite matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import copyltu as _copyltu
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import gemmt as _gemmt


def inverse_psd(A: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Inverse of a symmetric positive definite matrix: B = A^-1.

    Args:
        A: (*batch, n, n), symmetric positive definite. Only the named triangle is read.
        lower: Read the lower triangle, else the upper one.
        overwrite: Leave the inverse in the memory of ``A`` and return ``A``.

    Returns:
        B, (*batch, n, n), symmetric to the last bit.

    Raises:
        NotPositiveDefiniteError: Names the first item that is not positive definite, and its leading minor.
        NonFiniteError: A NaN or an infinity was met. In both cases, with ``overwrite=True``, the items that
            failed have been replaced by the identity and the others by their Cholesky factors.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = -B sym(gB) B, symmetric: one product, and one triangle of another. Forward mode: dB = -B sym(dA)
        B. Saves B.

    Memory:
        forward 1 (0 with overwrite), backward 2

    Cost:
        forward n^3, backward 3 n^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.linalg.inverse_psd(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  1.0000]])
    """
    A = check_square_matrix("linalg.inverse_psd", "A", A)
    return operator.overwrite(A, lower) if overwrite else operator.call(A, lower)


def _invert(A: Tensor, lower: bool) -> Tensor:
    B = allocate_like(A)
    _invert_into(B, A, lower)
    return B


def _invert_in_place(A: Tensor, lower: bool) -> None:
    _invert_into(A, A, lower)


def _invert_into(B: Tensor, A: Tensor, lower: bool) -> None:
    failure = lookup("potrf", A)(B, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("linalg.inverse_psd", A.shape[:-2], failure)
    lookup("potri", A)(B, B, lower)


def _compute_congruence(B: Tensor, G: Tensor) -> Tensor:
    result = allocate_like(B)
    if has_kernel("congruence", B):
        lookup("congruence", B)(result, B, G)
        return result
    half = allocate_like(B)
    lookup("syrk_vjp", B)(half, B, G, False)
    lookup("gemmt", B)(result, B, half, lower=True, transpose_a=False, transpose_b=False, alpha=-0.5)
    lookup("copyltu", B)(result, result, True)
    return result


def _compute_congruence_composite(B: Tensor, G: Tensor) -> Tensor:
    """-B sym(G) B; one triangle is computed, and mirrored."""
    half = _gemm2.multiply(G + G.mT, B)
    triangle = _gemmt.multiply(B, half, alpha=-0.5)
    return _copyltu.operator.call(triangle, True)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor) -> tuple[Tensor]:
    (B,) = saved
    return (operator_vjp.call(B, gB),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    (B,) = saved
    return operator_vjp.call(B, dA)


_A, _B = 0, 1

operator_vjp = define_fused(
    "inverse_psd_vjp",
    "(Tensor B, Tensor G) -> Tensor",
    kernel=_compute_congruence,
    fake=lambda B, G: B.new_empty(B.shape),
    composite=_compute_congruence_composite,
    shortcut=make_shortcut("inverse_psd_vjp"),
)

operator = define(
    "inverse_psd",
    "(Tensor A, bool lower) -> Tensor",
    kernel=_invert,
    fake=lambda A, lower: A.new_empty(A.shape),
    formulas=Formulas(saves=((_B,),), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_A, "A", _invert_in_place, "linalg.inverse_psd"),
)
