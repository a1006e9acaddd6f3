"""potri: the inverse of a positive definite matrix from its Cholesky factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import trsm as _trsm

_take_shortcut = make_shortcut("potri")


def potri(L: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Inverse from the Cholesky factor: B = (L L^T)^-1, or B = (R^T R)^-1 with ``lower=False``.

    Args:
        L: (*batch, n, n), triangular: what ``potrf`` returns. Only the named triangle is read.
        lower: L is a lower factor, else an upper one.
        overwrite: Leave the result in the memory of ``L`` and return ``L``. A backward then needs a copy.

    Returns:
        B, (*batch, n, n), symmetric to the last bit.

    Raises:
        SingularMatrixError: Names the first item with an exact zero on the diagonal of L. ``L`` keeps its
            values.
        DTypeError, ShapeError, SizeError: ``L`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gL = -2 tril(L^-T Z), Z = L^-1 sym(gB) L^-T. The lower triangle of Z takes n^3 flops, and that of
        L^-T Z reads no more of Z than it, n^3/3: all in the buffer of gL. (With B at hand, tril(B sym(gB))
        L^-T takes as many flops, and one more buffer.) Forward mode: dB = -L^-T (P + P^T) L^-1, P = L^-1
        tril(dL). Saves L.

    Memory:
        forward 1 (0 with overwrite), backward 1

    Cost:
        forward 2 n^3/3, backward 4 n^3/3 flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.potri(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  1.0000]])
    """
    if not overwrite and not is_compiling():
        B: Tensor | None = _take_shortcut(L, lower)
        if B is not None:
            return B
    L = check_square_matrix("potri", "L", L)
    return operator.overwrite(L, lower) if overwrite else operator.call(L, lower)


def _invert(L: Tensor, lower: bool) -> Tensor:
    B = allocate_like(L)
    failure = lookup("potri", L)(B, L, lower)
    if failure is not None:
        item, index = failure
        raise _errors.singular("potri", _errors.batch_index(item, L.shape[:-2]), index)
    return B


def _invert_in_place(L: Tensor, lower: bool) -> None:
    failure = lookup("potri", L)(L, L, lower)
    if failure is not None:
        item, index = failure
        raise _errors.singular("potri", _errors.batch_index(item, L.shape[:-2]), index)


def _compute_vjp(L: Tensor, gB: Tensor, lower: bool) -> Tensor:
    gL = allocate_like(L)
    lookup("potri_vjp", L)(gL, L, gB, lower)
    return gL


def _compute_vjp_composite(L: Tensor, gB: Tensor, lower: bool) -> Tensor:
    """gL = -tril(L^-T Z), Z = L^-1 (gB + gB^T) L^-T; with L = R^T and gL = gR^T for the upper factor.

    As R^-T is what L^-1 is, the steps are the same: gR = -triu(Z R^-T).
    """
    Z = _trsm.operator.call(L, -(gB + gB.mT), lower, not lower, False)
    Z = _trsm.operator.call(L, Z, lower, lower, True)
    X = _trsm.operator.call(L, Z, lower, True, not lower)
    return X.tril() if lower else X.triu()


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor) -> tuple[Tensor]:
    (L,), (lower,) = saved, flags
    return (operator_vjp.call(L, gB, lower),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dL: Tensor) -> Tensor:
    """dB = -L^-T (P + P^T) L^-1, P = L^-1 tril(dL); for R: dB = -R^-1 (P + P^T) R^-T, P = triu(dR) R^-1."""
    (L,), (lower,) = saved, flags
    P = _trsm.operator.call(L, dL.tril() if lower else dL.triu(), lower, False, not lower)
    dB = _trsm.operator.call(L, -(P + P.mT), lower, lower, False)
    return _trsm.operator.call(L, dB, lower, not lower, True)


_L = 0

operator_vjp = define_fused(
    "potri_vjp",
    "(Tensor L, Tensor gB, bool lower) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda L, gB, lower: L.new_empty(L.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("potri_vjp"),
)

operator = define(
    "potri",
    "(Tensor L, bool lower) -> Tensor",
    kernel=_invert,
    fake=lambda L, lower: L.new_empty(L.shape),
    formulas=Formulas(saves=((_L,),), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_L, "L", _invert_in_place),
    shortcut=_take_shortcut,
)
