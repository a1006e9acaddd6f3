"""potrf: the Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import copyltu as _copyltu
from lapgrad.ops import trmm as _trmm
from lapgrad.ops import trsm as _trsm

_take_shortcut = make_shortcut("potrf")


class Factorisation(NamedTuple):
    """Cholesky factors and a status for each: what ``potrf_ex`` returns.

    Attributes:
        L: The factors, (*batch, n, n); the identity where the factorisation failed.
        info: Status per item, int32 (*batch): 0 success; k > 0: the leading minor of order k is not positive;
            -k < 0: NaN or infinity met at pivot k.
    """

    L: Tensor
    info: Tensor


def potrf(A: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Cholesky factor of a symmetric positive definite matrix: A = L L^T, or A = R^T R with ``lower=False``.

    Args:
        A: (*batch, n, n), symmetric positive definite. Only the named triangle is read.
        lower: Return the lower factor L, else the upper factor R.
        overwrite: Leave the factor in the memory of ``A`` and return ``A``.

    Returns:
        L, or R with ``lower=False``: the factor, (*batch, n, n); its other triangle is zero.

    Raises:
        NotPositiveDefiniteError: Names the first item that is not positive definite, and its leading minor.
        NonFiniteError: A NaN or an infinity was met. In both cases, with ``overwrite=True``, the items that
            failed have been replaced by the identity and the others by their factors.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = 1/2 L^-T copyltu(L^T gL) L^-1, returned symmetric: A counts as a symmetric matrix, whichever
        triangle is read. Forward mode: dL = L phi(L^-1 sym(dA) L^-T), phi = lower triangle with the diagonal
        halved. Saves L. The first derivative is one in-place sweep; higher orders follow the formula.

    Memory:
        forward 1 (0 with overwrite), backward 1

    Cost:
        forward n^3/3, backward 2 n^3/3 flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[4.0, 2.0], [2.0, 5.0]])
        >>> lapgrad.potrf(A)
        tensor([[2., 0.],
                [1., 2.]])
    """
    if not overwrite and not is_compiling() and (shortcut := find_shortcut("potrf_shortcut")):
        factor: Tensor | None = shortcut(A, lower)
        if factor is not None:
            return factor
    A = check_square_matrix("potrf", "A", A)
    return operator.overwrite(A, lower) if overwrite else operator.call(A, lower)


def potrf_ex(A: Tensor, *, lower: bool = True, overwrite: bool = False) -> Factorisation:
    """Cholesky factor with a status instead of an exception: A = L L^T, or A = R^T R with ``lower=False``.

    Args:
        A: (*batch, n, n). Only the named triangle is read.
        lower: Return the lower factor L, else the upper factor R.
        overwrite: Leave the factor in the memory of ``A``.

    Returns:
        The named tuple (L, info). ``L`` (*batch, n, n) is the identity for items that failed. ``info``
        (*batch), int32: 0 success; k > 0: the leading minor of order k is not positive; -k < 0: NaN or
        infinity met at pivot k.

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        As for ``potrf``; an item that failed has gradient zero, and does not disturb the others. Saves L and
        info.

    Memory:
        forward 1 (0 with overwrite), backward 1

    Cost:
        forward n^3/3, backward 2 n^3/3 flops. On a GPU nothing waits for the status.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[[4.0, 2.0], [2.0, 5.0]], [[1.0, 3.0], [3.0, 1.0]]])
        >>> L, info = lapgrad.potrf_ex(A)
        >>> info
        tensor([0, 2], dtype=torch.int32)
    """
    if not overwrite and not is_compiling() and (shortcut := find_shortcut("potrf_ex_shortcut")):
        factorisation = shortcut(A, lower)
        if factorisation is not None:
            return tuple.__new__(Factorisation, factorisation)  # a third of the time of its constructor
    A = check_square_matrix("potrf_ex", "A", A)
    result = operator_ex.overwrite(A, lower) if overwrite else operator_ex.call(A, lower)
    return Factorisation(*result)


def _factorise(A: Tensor, lower: bool) -> Tensor:
    L = allocate_like(A)
    failure = lookup("potrf", A)(L, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("potrf", A.shape[:-2], failure)
    return L


def _factorise_in_place(A: Tensor, lower: bool) -> None:
    failure = lookup("potrf", A)(A, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("potrf", A.shape[:-2], failure)


def _factorise_with_status(A: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    L, info = allocate_like(A), _allocate_status(A)
    lookup("potrf", A)(L, A, lower, info)
    return L, info


def _factorise_with_status_in_place(A: Tensor, lower: bool) -> tuple[Tensor]:
    info = _allocate_status(A)
    lookup("potrf", A)(A, A, lower, info)
    return (info,)


def _allocate_status(A: Tensor) -> Tensor:
    return A.new_empty(A.shape[:-2], dtype=torch.int32)


def _compute_vjp(L: Tensor, gL: Tensor, info: Tensor | None, lower: bool) -> Tensor:
    gA = allocate_like(L)
    lookup("potrf_vjp", L)(gA, L, gL, lower, info)
    return gA


def _compute_vjp_composite(L: Tensor, gL: Tensor, info: Tensor | None, lower: bool) -> Tensor:
    """gA = 1/2 L^-T copyltu(L^T tril(gL)) L^-1; for A = R^T R the same with L = R^T, gL = gR^T."""
    if not lower:
        L, gL = L.mT, gL.mT
    if info is not None:
        # The factor of a failed item is the identity, so a zero cotangent gives a zero gradient at every
        # order.
        gL = gL.masked_fill((info != 0)[..., None, None], 0.0)
    middle = _trmm.multiply(L, gL.tril(), transpose=True)
    middle = _copyltu.operator.call(middle, True)
    middle = _trsm.solve(L, middle, transpose=True)
    return 0.5 * _trsm.solve(L, middle, rightside=True)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor) -> tuple[Tensor]:
    (L,), (lower,) = saved, flags
    return (operator_vjp.call(L, gL, None, lower),)


def _vjp_ex(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor, _: None
) -> tuple[Tensor]:
    (L, info), (lower,) = saved, flags
    return (operator_vjp.call(L, gL, info, lower),)


def compute_jvp(L: Tensor, dA: Tensor, lower: bool) -> Tensor:
    """dL = L phi(L^-1 sym(dA) L^-T); for A = R^T R: dR = phi(R^-T sym(dA) R^-1) R, phi of the upper triangle.

    Symmetrised, the map is the exact adjoint of the vjp, so that forward and reverse mode agree on every
    input.
    """
    middle = 0.5 * (dA + dA.mT)
    middle = _trsm.operator.call(L, middle, lower, not lower, False)
    middle = _trsm.operator.call(L, middle, lower, lower, True)
    half = 0.5 * middle
    phi = half.tril() + half.tril(-1) if lower else half.triu() + half.triu(1)
    return _trmm.operator.call(L, phi, lower, False, not lower)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    (L,) = saved
    return compute_jvp(L, dA, *flags)


def _jvp_ex(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, None]:
    L, info = saved
    dA = dA.masked_fill((info != 0)[..., None, None], 0.0)
    return compute_jvp(L, dA, *flags), None


operator_vjp = define_fused(
    "potrf_vjp",
    "(Tensor L, Tensor gL, Tensor? info, bool lower) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda L, gL, info, lower: L.new_empty(L.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("potrf_vjp"),
)

_A, _L, _INFO = 0, 1, 2

operator = define(
    "potrf",
    "(Tensor A, bool lower) -> Tensor",
    kernel=_factorise,
    fake=lambda A, lower: A.new_empty(A.shape),
    formulas=Formulas(saves=((_L,),), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_A, "A", _factorise_in_place),
    shortcut=_take_shortcut,
)

operator_ex = define(
    "potrf_ex",
    "(Tensor A, bool lower) -> (Tensor, Tensor)",
    kernel=_factorise_with_status,
    fake=lambda A, lower: (A.new_empty(A.shape), _allocate_status(A)),
    formulas=Formulas(saves=((_L, _INFO),), vjp=_vjp_ex, jvp=_jvp_ex, constant_results=(1,)),
    overwriting=Overwriting(_A, "A", _factorise_with_status_in_place),
    shortcut=make_shortcut("potrf_ex"),
)
