"""pstrf: the Cholesky factorisation with pivoting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._kernels.table import has_kernel, lookup
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_count, check_square_matrix, check_tolerance
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import gemmt as _gemmt
from lapgrad.ops import potrf as _potrf
from lapgrad.ops import trsm as _trsm


class PivotedFactorisation(NamedTuple):
    """Pivoted Cholesky factor, pivots and rank: what ``pstrf`` returns.

    Attributes:
        L: (*batch, n, rank), lower trapezoidal, or with ``lower=False`` R (*batch, rank, n); zero from column
            (row) ``rank`` on.
        pivots: int64 (*batch, n): row and column ``pivots[i]`` of A are row and column i of the product.
        rank: int64 (*batch): how many columns were computed.
    """

    L: Tensor
    pivots: Tensor
    rank: Tensor


def pstrf(
    A: Tensor, *, rank: int | None = None, tol: float | None = None, lower: bool = True
) -> PivotedFactorisation:
    """Cholesky factor with diagonal pivoting: P^T A P = L L^T, or R^T R with ``lower=False``, up to a rank.

    P is the permutation that ``pivots`` lists. For matrices that are positive semidefinite, or close to one
    of low rank. Each step takes the largest entry of the diagonal of what is left of A as its pivot, and the
    factorisation ends where none is larger than ``tol``, as LAPACK's pstrf does. What is left then has no
    entry larger than that pivot. A matrix that is not positive semidefinite is not refused: it ends the same
    way.

    Args:
        A: (*batch, n, n), symmetric positive semidefinite. Only the named triangle is read.
        rank: How many columns at most; None: n.
        tol: The factorisation ends at pivots that are not larger; None: n times the rounding unit times the
            largest diagonal entry, as in LAPACK.
        lower: Read the lower triangle and return L, else read the upper one and return R = L^T.

    Returns:
        The named tuple (L, pivots, rank). ``L`` (*batch, n, rank) is lower trapezoidal with a diagonal that
        falls, its columns zero from the rank that was found on; R (*batch, rank, n) with ``lower=False``.
        ``pivots``, int64 (*batch, n), is a permutation, counted from 0: ``A[pivots][:, pivots]`` is L L^T.
        ``rank``, int64 (*batch), is how many pivots were larger than ``tol``.

    Raises:
        NonFiniteError: Names the first item in which a NaN or an infinity was met, and the pivot.
        OptionError: ``rank`` is not within 0 and n, or ``tol`` is not a number >= 0.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        The pivots and the rank count as fixed. With rows and columns of A in the order of the pivots, and
        L1 the first ``rank`` rows of L, L2 the others: gA21 = gL2 L1^-1, and gA11 is that of ``potrf`` for
        the cotangent gL1 - gA21^T L2. gA is symmetric. Forward mode: dL1 as in ``potrf``,
        dL2 = (dA21 - L2 dL1^T) L1^-T. Saves L, the pivots and the rank.

    Memory:
        forward 1, backward 3
        With ``rank=None``, in units of L and of the gradient. With a rank of at most n / 8: forward two
        buffers of n x rank. In between: a copy of A besides L.

    Cost:
        With r = rank: forward (n^2 - n r + r^2 / 3) r flops, or n r^2 if r is at most n / 8; backward
        n r^2 + 2/3 r^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
        >>> L, pivots, rank = lapgrad.pstrf(A)
        >>> L
        tensor([[2., 0.],
                [1., 0.]])
        >>> pivots.tolist(), rank.item()
        ([1, 0], 1)
    """
    A = check_square_matrix("pstrf", "A", A)
    n = A.shape[-1]
    if rank is None:
        rank = n
    else:
        check_count("pstrf", "rank", rank, 0, n, "n")
    check_tolerance("pstrf", "tol", tol)
    return PivotedFactorisation(*operator.call(A, rank, tol, lower))


def _factorise(A: Tensor, rank: int, tol: float | None, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
    results = _fake(A, rank, tol, lower)
    failure = lookup("pstrf", A)(*results, A, tol, lower)
    if failure is not None:
        raise _errors.pivot_not_finite("pstrf", A.shape[:-2], failure)
    return results


def _fake(A: Tensor, rank: int, tol: float | None, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised results."""
    batch, n = A.shape[:-2], A.shape[-1]
    L = A.new_empty((*batch, n, rank) if lower else (*batch, rank, n))
    return L, A.new_empty((*batch, n), dtype=torch.int64), A.new_empty(batch, dtype=torch.int64)


def _split(L: Tensor, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L1 (r x r) with ones on its diagonal where columns are zero, L2 (n - r x r), and those columns.

    With these ones L1 can be solved with, and they do not mix with the other columns: L1 is triangular.
    """
    r = L.shape[-1]
    is_zero = torch.arange(r, device=L.device) >= found.unsqueeze(-1)
    return L[..., :r, :] + torch.diag_embed(is_zero.to(L.dtype)), L[..., r:, :], is_zero.unsqueeze(-2)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor | None, *others: None
) -> tuple[Tensor | None]:
    (L, pivots, found), (_, _, lower) = saved, flags
    if gL is None:
        return (None,)
    if not lower:
        L, gL = L.mT, gL.mT
    return (operator_vjp.call(L, gL, pivots, found),)


def _compute_vjp(L: Tensor, gL: Tensor, pivots: Tensor, found: Tensor) -> Tensor:
    if not has_kernel("pstrf_vjp", L) or not lookup("serves_pstrf_vjp", L)(L):
        return _compute_vjp_composite(L, gL, pivots, found)
    gA = allocate_like(L)
    lookup("pstrf_vjp", L)(gA, L, gL, pivots, found)
    return gA


def _compute_vjp_composite(L: Tensor, gL: Tensor, pivots: Tensor, found: Tensor) -> Tensor:
    """gA21 = gL2 L1^-1, gA11 = vjp of potrf at L1 for the cotangent gL1 - gA21^T L2, in pivoted order."""
    r, rest = L.shape[-1], L.shape[-2] - L.shape[-1]
    L1, L2, is_zero = _split(L, found)
    gL = gL.masked_fill(is_zero, 0.0)
    if not rest:
        pivoted = _potrf.operator_vjp.call(L1, gL, None, True)
    else:
        gA21 = _trsm.solve(L1, gL[..., r:, :], rightside=True)
        gL1 = gL[..., :r, :] + _gemmt.multiply(gA21, L2, transpose_a=True, alpha=-1.0)
        gA11, half = _potrf.operator_vjp.call(L1, gL1, None, True), 0.5 * gA21
        bottom = torch.cat((half, half.new_zeros((*half.shape[:-1], rest))), -1)
        pivoted = torch.cat((torch.cat((gA11, half.mT), -1), bottom), -2)
    return _put_back(pivoted, pivots)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, None, None]:
    """dL1 as in potrf, dL2 = (dA21 - L2 dL1^T) L1^-T, of sym(dA) in pivoted order."""
    (L, pivots, found), (_, _, lower) = saved, flags
    L = L if lower else L.mT
    r = L.shape[-1]
    L1, L2, is_zero = _split(L, found)
    columns = _take(0.5 * (dA + dA.mT), pivots, pivots[..., :r])
    if L.shape[-2] == r:  # a slice of everything has no rule in torch's legacy vmap
        dL = _potrf.compute_jvp(L1, columns, True).masked_fill(is_zero, 0.0)
        return dL if lower else dL.mT.contiguous(), None, None
    dL1 = _potrf.compute_jvp(L1, columns[..., :r, :], True)
    moved = columns[..., r:, :] - _gemm2.multiply(L2, dL1, transpose_b=True)
    dL2 = _trsm.solve(L1, moved, transpose=True, rightside=True)
    dL = torch.cat((dL1, dL2), -2).masked_fill(is_zero, 0.0)
    return dL if lower else dL.mT.contiguous(), None, None


def _take(A: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the entries of A at rows (*batch, m) and columns (*batch, r): (*batch, m, r)."""
    A = A.gather(-1, columns.unsqueeze(-2).expand(*A.shape[:-1], columns.shape[-1]))
    return A.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, A.shape[-1]))


def _put_back(pivoted: Tensor, pivots: Tensor) -> Tensor:
    """A with A[p_i, p_j] = pivoted_ij for the pivots p, (*batch, n, n)."""
    places = torch.arange(pivots.shape[-1], device=pivots.device).expand_as(pivots)
    back = torch.zeros_like(pivots).scatter(-1, pivots, places)
    return _take(pivoted, back, back)


_L, _PIVOTS, _RANK = 1, 2, 3

operator_vjp = define_fused(
    "pstrf_vjp",
    "(Tensor L, Tensor gL, Tensor pivots, Tensor found) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda L, gL, pivots, found: L.new_empty((*L.shape[:-1], L.shape[-2])),
    composite=_compute_vjp_composite,
)

operator = define(
    "pstrf",
    "(Tensor A, SymInt rank, float? tol, bool lower) -> (Tensor, Tensor, Tensor)",
    kernel=_factorise,
    fake=_fake,
    formulas=Formulas(saves=((_L, _PIVOTS, _RANK),), vjp=_vjp, jvp=_jvp, constant_results=(1, 2)),
)
