"""logdet_psd: the log determinant of a positive definite matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import extractdiag as _extractdiag
from lapgrad.ops import potrf as _potrf
from lapgrad.ops import potri as _potri


def logdet_psd(A: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Log determinant of a symmetric positive definite matrix: s = log det A.

    Args:
        A: (*batch, n, n), symmetric positive definite. Only the named triangle is read.
        lower: Read the lower triangle, else the upper one.
        overwrite: Leave the Cholesky factor (see ``potrf``) in the memory of ``A``.

    Returns:
        s, (*batch).

    Raises:
        NotPositiveDefiniteError: Names the first item that is not positive definite, and its leading minor.
        NonFiniteError: A NaN or an infinity was met. In both cases, with ``overwrite=True``, the items that
            failed have been replaced by the identity and the others by their factors.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = gs A^-1, from the factor as ``potri`` does it. Forward mode: ds = tr(A^-1 sym(dA)). Saves the
        Cholesky factor of A.

    Memory:
        forward 1 n^2 (0 with overwrite), backward 1 n^2

    Cost:
        forward n^3/3, backward 2 n^3/3 flops.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.linalg.logdet_psd(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))
        tensor(1.3863)
    """
    A = check_square_matrix("linalg.logdet_psd", "A", A)
    result = operator.overwrite(A, lower) if overwrite else operator.call(A, lower)
    s: Tensor = result[1]
    return s


def _factorise(A: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    L = allocate_like(A)
    (s,) = _factorise_into(L, A, lower)
    return L, s


def _factorise_in_place(A: Tensor, lower: bool) -> tuple[Tensor]:
    return _factorise_into(A, A, lower)


def _factorise_into(L: Tensor, A: Tensor, lower: bool) -> tuple[Tensor]:
    failure = lookup("potrf", A)(L, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("linalg.logdet_psd", A.shape[:-2], failure)
    s = A.new_empty(A.shape[:-2])
    lookup("sum_logs_and_squares", A)(s, L, None, 0.0, 2.0, 0.0)
    return (s,)


def _compute_vjp(L: Tensor, gs: Tensor, lower: bool) -> Tensor:
    gA = allocate_like(L)
    lookup("potri_update", L)(gA, L, None, gs, lower, 1.0, 0.0)
    return gA


def _compute_vjp_composite(L: Tensor, gs: Tensor, lower: bool) -> Tensor:
    """gA = gs A^-1."""
    return gs[..., None, None] * _potri.operator.call(L, lower)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor | None, gs: Tensor | None
) -> tuple[Tensor | None]:
    """The factor is no result that users see: its cotangent comes from derivatives of this function."""
    (L,), (lower,) = saved, flags
    gA = None if gs is None else operator_vjp.call(L, gs, lower)
    if gL is not None:
        through_factor = _potrf.operator_vjp.call(L, gL, None, lower)
        gA = through_factor if gA is None else gA + through_factor
    return (gA,)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor]:
    """ds = 2 sum_i dl_ii / l_ii, with dL as in potrf."""
    (L,) = saved
    dL = _potrf.compute_jvp(L, dA, *flags)
    ratio = _extractdiag.operator.call(dL, 0) / _extractdiag.operator.call(L, 0)
    return dL, 2.0 * ratio.sum(-1)


_A, _L = 0, 1

operator_vjp = define_fused(
    "logdet_psd_vjp",
    "(Tensor L, Tensor gs, bool lower) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda L, gs, lower: L.new_empty(L.shape),
    composite=_compute_vjp_composite,
)

operator = define(
    "logdet_psd",
    "(Tensor A, bool lower) -> (Tensor, Tensor)",
    kernel=_factorise,
    fake=lambda A, lower: (A.new_empty(A.shape), A.new_empty(A.shape[:-2])),
    formulas=Formulas(saves=((_L,),), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_A, "A", _factorise_in_place, "linalg.logdet_psd"),
)
