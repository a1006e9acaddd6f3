"""lstsq: least squares, and the smallest solution where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch import layout as _layout
from lapgrad._torch.define import Formulas, define
from lapgrad._torch.layout import allocate_matrix
from lapgrad.ops import _columns
from lapgrad.ops import gelqf as _gelqf
from lapgrad.ops import gemm as _gemm
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import trsm as _trsm


def lstsq(A: Tensor, B: Tensor, *, rcond: float | None = None) -> Tensor:
    """Least squares with a matrix of full rank: X = argmin |A X - B|, of all such X the smallest.

    Through the LQ factorisation of a wide A = L Q, X = Q^T L^-1 B, and of the transpose of a tall one,
    A^T = L Q, X = L^-T Q B. Never through A^T A. Leading dimensions broadcast; one A for a batch of B is one
    factorisation.

    Args:
        A: (*batch, m, n), of rank min(m, n).
        B: (*batch, m, k), or a vector (m).
        rcond: A counts as without full rank when a diagonal entry of L is at most rcond times the largest
            one. None: when what is left of a row of L on its diagonal is rounding, |l_ii| <= max(m, n) eps
            max_j |l_ij|.

    Returns:
        X, (*batch, n, k) (with the leading dimensions broadcast); (*batch, n) for a vector.

    Raises:
        RankDeficientError: Names the first item of A without full rank, and its first dependent row (of a
            tall A: column).
        NonFiniteError: Names the first item of A with a NaN or an infinity.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.
        OptionError: ``rcond`` is negative.

    Gradient:
        gB = A^+T gX and gA = -gB X^T + A^+T X (gX - A^+ A gX)^T + (B - A X) (A^+ A^+T gX)^T: for a wide A the
        last term is zero, for a tall one the term before it, for a square one both. Forward mode: dX = A^+
        (dB - dA X) + (I - A^+ A) dA^T A^+T X + A^+ A^+T dA^T (B - A X). Saves Q and L, and when A needs a
        gradient B and X.

    Memory:
        forward 4 n^2, backward 3 n^2
        For a square A and B: Q, L, L^-1 B and the result; gA, gB and one product.

    Cost:
        For m <= n: forward 4 m^2 n + (2 n + m) m k, backward (8 n + 2 m) m k flops: no factorisation.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 1.0]])
        >>> lapgrad.linalg.lstsq(A, torch.tensor([[4.0]])).round(decimals=4)
        tensor([[2.],
                [2.]])
    """
    _layout.check_tolerance("linalg.lstsq", "rcond", rcond)
    if isinstance(B, Tensor) and B.dim() == 1:
        return lstsq(A, _columns.make_column("linalg.lstsq", "A", A, "B", B), rcond=rcond).squeeze(-1)
    A, B = _layout.check_matrix("linalg.lstsq", "A", A), _layout.check_matrix("linalg.lstsq", "B", B)
    if A.dtype is not B.dtype or A.device != B.device:
        _layout.check_same_kind("linalg.lstsq", A=A, B=B)
    if A.shape[-2] != B.shape[-2]:
        raise _errors.shapes_do_not_fit("linalg.lstsq", {"A": A, "B": B}, "A must be m x n and B m x k")
    same_batch = A.shape[:-2] == B.shape[:-2]
    batch = A.shape[:-2] if same_batch else _layout.broadcast_batch("linalg.lstsq", A=A, B=B)
    return _columns.solve_side_by_side(lambda A, B: operator.call(A, B, rcond)[0], A, B, batch)


def _fake(A: Tensor, B: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    m, n = A.shape[-2:]
    rank = min(m, n)
    return (
        allocate_matrix(A, n, B.shape[-1]),
        allocate_matrix(A, rank, max(m, n)),
        allocate_matrix(A, rank, rank),
    )


def _solve(A: Tensor, B: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    m, n = A.shape[-2:]
    wide = m <= n
    X, Q, L = _fake(A, B, rcond)
    spoilt = lookup("gelqf", A)(L, Q, A if wide else A.mT, False)
    if spoilt is not None:
        raise _errors.factors_not_finite("linalg.lstsq", A.shape[:-2], spoilt)
    tolerance = max(m, n) * torch.finfo(A.dtype).eps if rcond is None else rcond
    dependent = lookup("find_dependent_row", A)(L, tolerance, rcond is not None)
    if dependent is not None:
        line = "row" if wide else "column"
        consequence = f"Leave out dependent {line}s, or add a multiple of the identity to the equations."
        raise _errors.rank_deficient("linalg.lstsq", A.shape[:-2], dependent, line, consequence)
    multiply, solve = lookup("gemm", A), lookup("trsm", A)
    if wide:
        middle = allocate_matrix(B, m, B.shape[-1])
        solve(middle, L, B, lower=True, transpose=False, rightside=False)
        multiply(X, Q, middle, transpose_a=True, transpose_b=False, alpha=1.0, beta=0.0)
    else:
        multiply(X, Q, B, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0)
        solve(X, L, X, lower=True, transpose=True, rightside=False)
    return X, Q, L


def _multiply(A: Tensor, B: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return _gemm2.operator.call(A, B, transpose_a, transpose_b, 1.0)


def _subtract(
    C: Tensor, A: Tensor, B: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    """C - ta(A) tb(B)."""
    return _gemm.operator.call(A, B, C, transpose_a, transpose_b, -1.0, 1.0)


def _solve_with_factors(L: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """t(L)^-1 B, without a check: L was found to be regular when the system was solved."""
    return _trsm.solve(L, B, transpose=transpose)


def _is_wide(Q: Tensor, n: int) -> bool:
    """Return whether Q is m x n (A was wide or square), not n x m."""
    return Q.shape[-1] == n


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gX: Tensor | None,
    gQ: Tensor | None,
    gL: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The formulas above with A^+ = Q^T L^-1 (wide), L^-T Q (tall).

    The factors are not returned to users: their cotangents come from derivatives of this formula.
    """
    B, X, Q, L = saved
    gA = gB = None
    if gX is not None:
        gA, gB = (_vjp_wide if _is_wide(Q, gX.shape[-2]) else _vjp_tall)(needs[0], B, X, Q, L, gX)
    if needs[0] and not (gQ is None and gL is None):
        through_factors = _gelqf.operator_vjp.call(Q, L, gQ, gL)
        if not _is_wide(Q, X.shape[-2]):
            through_factors = through_factors.mT.contiguous()
        gA = through_factors if gA is None else gA + through_factors
    return gA, gB if needs[1] else None


def _vjp_wide(
    of_matrix: bool, B: Tensor, X: Tensor, Q: Tensor, L: Tensor, gX: Tensor
) -> tuple[Tensor | None, Tensor]:
    """gB = L^-T Q gX, gA = Y (gX - Q^T Q gX)^T - gB X^T with Y = A^+T X = L^-T Q X."""
    inside = _multiply(Q, gX)
    gB = _solve_with_factors(L, inside, True)
    if not of_matrix:
        return None, gB
    if Q.shape[-1] == Q.shape[-2]:
        return _gemm2.multiply(gB, X, transpose_b=True, alpha=-1.0), gB
    outside = _subtract(gX, Q, inside, transpose_a=True)
    gA = _multiply(_solve_with_factors(L, _multiply(Q, X), True), outside, transpose_b=True)
    return _subtract(gA, gB, X, transpose_b=True), gB


def _vjp_tall(
    of_matrix: bool, B: Tensor, X: Tensor, Q: Tensor, L: Tensor, gX: Tensor
) -> tuple[Tensor | None, Tensor]:
    """gB = Q^T L^-1 gX, gA = (B - Q^T Q B) (L^-T L^-1 gX)^T - gB X^T."""
    inside = _solve_with_factors(L, gX, False)
    gB = _multiply(Q, inside, transpose_a=True)
    if not of_matrix:
        return None, gB
    residual = _subtract(B, Q, _multiply(Q, B), transpose_a=True)
    # L^-T L^-1 may leave the range of numbers where its product with the residual does not: one factor of the
    # size of L moves from one to the other.
    size = L.detach()[..., :1, :1].abs() if L.numel() else 1.0
    gA = _multiply(residual / size, _solve_with_factors(L, inside * size, True), transpose_b=True)
    return _subtract(gA, gB, X, transpose_b=True), gB


def _jvp(
    saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor | None, dB: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dX as above, and the tangents of the factors as in gelqf."""
    B, X, Q, L = saved
    wide = _is_wide(Q, X.shape[-2])
    if dA is None:
        assert dB is not None
        dX = (
            _multiply(Q, _solve_with_factors(L, dB, False), transpose_a=True)
            if wide
            else _solve_with_factors(L, _multiply(Q, dB), True)
        )
        return dX, torch.zeros_like(Q), torch.zeros_like(L)
    right = _subtract(torch.zeros_like(B) if dB is None else dB, dA, X)
    if wide:
        moved = _multiply(dA, _solve_with_factors(L, _multiply(Q, X), True), transpose_a=True)
        inside = _solve_with_factors(L, right, False) - _multiply(Q, moved)
        dX = moved + _multiply(Q, inside, transpose_a=True)
        return dX, *_gelqf.compute_jvp(Q, L, dA)
    residual = _subtract(B, Q, _multiply(Q, B), transpose_a=True)
    inside = _multiply(Q, right) + _solve_with_factors(L, _multiply(dA, residual, transpose_a=True), False)
    return _solve_with_factors(L, inside, True), *_gelqf.compute_jvp(Q, L, dA.mT)


_B, _X, _Q, _L = 1, 2, 3, 4

operator = define(
    "lstsq",
    "(Tensor A, Tensor B, float? rcond) -> (Tensor, Tensor, Tensor)",
    kernel=_solve,
    fake=_fake,
    formulas=Formulas(saves=((_B, _X, _Q, _L), (_Q, _L)), vjp=_vjp, jvp=_jvp),
    vmap=_columns.map_batch,
    shortcut=make_shortcut("lstsq"),
)
