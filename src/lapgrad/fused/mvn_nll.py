"""mvn_nll: the negative log likelihood of a multivariate normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from lapgrad import _errors, _exceptions
from lapgrad._kernels.table import lookup
from lapgrad._torch import layout as _layout
from lapgrad._torch.define import Formulas, Overwriting, define, define_fused
from lapgrad._torch.layout import allocate_like
from lapgrad._torch.private import skips_dispatcher
from lapgrad.ops import _columns, _triangular
from lapgrad.ops import extractdiag as _extractdiag
from lapgrad.ops import potrf as _potrf
from lapgrad.ops import potri as _potri
from lapgrad.ops import sumlogdiag as _sumlogdiag
from lapgrad.ops import syrk as _syrk
from lapgrad.ops import trmm as _trmm
from lapgrad.ops import trsm as _trsm

_LOG_2_PI = math.log(2.0 * math.pi)


def mvn_nll(A: Tensor, Y: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Negative log density of N(0, A): s = 1/2 tr(Y^T A^-1 Y) + k/2 log det A + n k/2 log(2 pi).

    The k columns of Y are independent draws, and their terms are added up: s = -sum_j log N(y_j | 0, A). It
    is the criterion of Gaussian process regression, with A the covariance of n observations. Leading
    dimensions broadcast; one A for a batch of Y is factorised once.

    Args:
        A: (*batch, n, n), symmetric positive definite. Only the named triangle is read.
        Y: (*batch, n, k), or a vector (n). Of a batch of vectors, (*batch, n), make ``y[..., None]``: the
            last of several dimensions always counts draws.
        lower: Read the lower triangle of A, else the upper one.
        overwrite: Leave the Cholesky factor (see ``potrf``) in the memory of ``A``.

    Returns:
        s, (*batch).

    Raises:
        NotPositiveDefiniteError: Names the first item of A that is not positive definite, and its leading
            minor.
        NonFiniteError: A NaN or an infinity was met in A. In both cases, with ``overwrite=True``, the items
            that failed have been replaced by the identity and the others by their factors.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = gs/2 (k A^-1 - alpha alpha^T), symmetric, and gY = gs alpha, with alpha = A^-1 Y. The inverse
        is made from the factor as ``potri`` does it, in the buffer of gA. Saves the Cholesky factor L of A,
        and L^-1 Y.

    Memory:
        forward 1 n^2 (0 with overwrite), backward 1 n^2
        Besides: a buffer of the size of Y forward and backward each.

    Cost:
        forward n^3/3 + n^2 k, backward 2 n^3/3 + 2 n^2 k flops: together n^3, a quarter of what the
        derivatives of the single steps add up to.

    Example:
        >>> import torch, lapgrad
        >>> A, y = torch.eye(2), torch.tensor([3.0, 4.0])
        >>> lapgrad.fused.mvn_nll(A, y)
        tensor(14.3379)
    """
    if isinstance(Y, Tensor) and Y.dim() == 1:
        Y = _columns.make_column("fused.mvn_nll", "A", A, "Y", Y)
    A, Y, batch = _columns.check_operands("fused.mvn_nll", "A", A, "Y", Y)
    lower = bool(lower)
    if A.shape[:-2] != batch:
        return _evaluate_shared(A, Y, lower, overwrite)
    Y = _layout.expand_batch(Y, batch)
    result = operator.overwrite(A, Y, lower) if overwrite else operator.call(A, Y, lower)
    s: Tensor = result[1]
    return s


def _evaluate_shared(A: Tensor, Y: Tensor, lower: bool, overwrite: bool) -> Tensor:
    """Return the values of several Y that share A, from one factor."""
    n, k = Y.shape[-2:]
    # Under tracers and transforms addresses are unknown: Y could be a view of A.
    if overwrite and (not skips_dispatcher((A, Y)) or _layout.may_overlap(A, Y)):
        Y = Y.clone()
    try:
        factor = _potrf.operator.overwrite if overwrite else _potrf.operator.call
        L = factor(A, lower)
    except (_exceptions.NotPositiveDefiniteError, _exceptions.NonFiniteError) as error:
        raise _errors.restate_failure("fused.mvn_nll", "A", error) from None
    W = _trsm.trsm(L, Y, lower=lower, transpose=not lower)
    half_logdet = _sumlogdiag.operator.call(L)
    return 0.5 * W.square().sum((-2, -1)) + k * half_logdet + 0.5 * n * k * _LOG_2_PI


def _evaluate(A: Tensor, Y: Tensor, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
    L = allocate_like(A)
    return L, *_evaluate_into(L, A, Y, lower)


def _evaluate_in_place(A: Tensor, Y: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    return _evaluate_into(A, A, Y, lower)


def _evaluate_into(L: Tensor, A: Tensor, Y: Tensor, lower: bool) -> tuple[Tensor, Tensor]:
    """L := the factor of A. Returns s and W = L^-1 Y; |W|^2 = tr(Y^T A^-1 Y)."""
    failure = lookup("potrf", A)(L, A, lower, None)
    if failure is not None:
        raise _errors.factorisation_failed("fused.mvn_nll", A.shape[:-2], failure)
    n, k = Y.shape[-2:]
    W, s = allocate_like(Y), A.new_empty(A.shape[:-2])
    lookup("trsm", A)(W, L, Y, lower, not lower, False)
    lookup("sum_logs_and_squares", A)(s, L, W, 0.5 * n * k * _LOG_2_PI, float(k), 0.5)
    return s, W


def _compute_vjp(L: Tensor, alpha: Tensor, gs: Tensor, lower: bool) -> Tensor:
    gA, k = allocate_like(L), alpha.shape[-1]
    if k == 0:
        return gA.zero_()
    lookup("potri_update", L)(gA, L, alpha, gs, lower, 0.5 * k, -1.0 / k)
    return gA


def _compute_vjp_composite(L: Tensor, alpha: Tensor, gs: Tensor, lower: bool) -> Tensor:
    """gA = gs/2 (k A^-1 - alpha alpha^T)."""
    inverse, outer = _potri.operator.call(L, lower), _syrk.operator.call(alpha, False)
    return (0.5 * gs)[..., None, None] * (alpha.shape[-1] * inverse - outer)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gL: Tensor | None,
    gs: Tensor | None,
    gW: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """gA and gY. L and W are not returned to users: their cotangents come from derivatives of this formula.

    W = L^-1 Y gives gY = L^-T gW and gL = -tril(gY W^T), and from there on it is potrf.
    """
    (L, W), (lower,) = saved, flags
    gA = gY = None
    if gs is not None:
        alpha = _trsm.operator.call(L, W, lower, lower, False)
        gA = operator_vjp.call(L, alpha, gs, lower) if needs[0] else None
        gY = _scale(alpha, gs) if needs[1] else None
    if gW is not None:
        through_solve = _trsm.operator.call(L, gW, lower, lower, False)
        if needs[0]:
            of_factor = _triangular.compute_triangle_vjp(through_solve, W, lower, not lower, False, -1.0)
            gL = of_factor if gL is None else gL + of_factor
        if needs[1]:
            gY = through_solve if gY is None else gY + through_solve
    if gL is not None and needs[0]:
        through_factor = _potrf.operator_vjp.call(L, gL, None, lower)
        gA = through_factor if gA is None else gA + through_factor
    return gA, gY


def _scale(alpha: Tensor, gs: Tensor) -> Tensor:
    """gs alpha; in place where autograd does not record and alpha is not shared."""
    weight = gs[..., None, None]
    if not is_grad_enabled() and skips_dispatcher((alpha, gs)):
        return alpha.mul_(weight)
    return weight * alpha


def _jvp(
    saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor | None, dY: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dW = L^-1 (dY - dL W), ds = <W, dW> + k sum_i dl_ii / l_ii, with dL as in potrf."""
    (L, W), (lower,) = saved, flags
    if dA is None:
        dW = _trsm.operator.call(L, dY, lower, not lower, False)
        return torch.zeros_like(L), (W * dW).sum((-2, -1)), dW
    dL = _potrf.compute_jvp(L, dA, lower)
    moved = _trmm.operator.call(dL, W, lower, not lower, False)
    dW = _trsm.operator.call(L, -moved if dY is None else dY - moved, lower, not lower, False)
    ratio = _extractdiag.operator.call(dL, 0) / _extractdiag.operator.call(L, 0)
    return dL, (W * dW).sum((-2, -1)) + W.shape[-1] * ratio.sum(-1), dW


def _fake(A: Tensor, Y: Tensor, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape[:-2]), Y.new_empty(Y.shape)


_A, _L, _W = 0, 2, 4

operator_vjp = define_fused(
    "mvn_nll_vjp",
    "(Tensor L, Tensor alpha, Tensor gs, bool lower) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda L, alpha, gs, lower: L.new_empty(L.shape),
    composite=_compute_vjp_composite,
)

operator = define(
    "mvn_nll",
    "(Tensor A, Tensor Y, bool lower) -> (Tensor, Tensor, Tensor)",
    kernel=_evaluate,
    fake=_fake,
    formulas=Formulas(saves=((_L, _W), (_L, _W)), vjp=_vjp, jvp=_jvp),
    overwriting=Overwriting(_A, "A", _evaluate_in_place, "fused.mvn_nll"),
)
