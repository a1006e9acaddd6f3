"""gelqf: the LQ factorisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, allocate_matrix, check_matrix
from lapgrad.ops import copyltu as _copyltu
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import gemmt as _gemmt
from lapgrad.ops import trmm as _trmm
from lapgrad.ops import trsm as _trsm

_MODES = ("reduced", "l")

_take_shortcut = make_shortcut("gelqf")


class LQ(NamedTuple):
    """LQ factorisation A = L Q: what ``gelqf`` returns.

    Attributes:
        Q: Orthonormal rows, (*batch, r, n) with r = min(m, n).
        L: Lower triangular, (*batch, m, r); trapezoidal when A is tall.
    """

    Q: Tensor
    L: Tensor


@overload
def gelqf(A: Tensor, *, mode: Literal["reduced"] = "reduced", positive: bool = False) -> LQ: ...
@overload
def gelqf(A: Tensor, *, mode: Literal["l"], positive: bool = False) -> Tensor: ...
def gelqf(A: Tensor, *, mode: str = "reduced", positive: bool = False) -> LQ | Tensor:
    """LQ factorisation of a matrix of any shape: A = L Q, L lower triangular, Q Q^T = I.

    Householder reflections of the rows, in blocks. Q and L are those of LAPACK, with its signs; the same as
    R^T and Q^T of the QR factorisation of A^T.

    Args:
        A: (*batch, m, n); r = min(m, n).
        mode: "reduced" for Q and L; "l" for L alone: Q is never formed, at half the cost.
        positive: Make the diagonal of L positive. For m <= n, L is then the Cholesky factor of A A^T. Without
            it the signs are LAPACK's; on CUDA the diagonal is positive either way.

    Returns:
        With "reduced" the named tuple (Q, L): Q (*batch, r, n) has orthonormal rows, L (*batch, m, r) is
        lower triangular, for m > n lower trapezoidal. With "l" the tensor L.

    Raises:
        NonFiniteError: Names the first item with a NaN or an infinity.
        RankDeficientError: In backward and in forward mode, for the first item whose leading r rows are
            linearly dependent up to rounding (|l_ii| <= max(m, n) eps max_j |l_ij|): such factors have no
            derivative. The factorisation itself takes any matrix of finite numbers.
        OptionError: ``mode`` is neither "reduced" nor "l".
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of float32 or float64 matrices.

    Gradient:
        For m <= n, gA = L^-T (gQ + copyltu(M) Q) with M = L^T gL - gQ Q^T; for L alone gA = L^-T copyltu(L^T
        gL) L^-1 A. For m > n the rows below the first n are A2 = L2 Q: gA2 = gL2 Q, and gQ + gL2^T A2 takes
        the place of gQ above. Forward mode: with C = L^-1 dA Q^T and X = tril(C + C^T) - diag(C), dL = L X
        and dQ = L^-1 dA - X Q. Saves Q and L; with "l" A and L. The same formulas hold with either sign of
        the diagonal.

    Memory:
        forward 1, backward 2
        In units of what is returned, for a square A: the gradient and M, which is r x r. Besides: when A is
        tall, another r x r in backward; with "l", the forward of a wide A takes a copy of A.

    Cost:
        For m <= n: forward 4 m^2 n, with "l" 2 m^2 n - 2/3 m^3; backward 4 m^2 n + m^3/3, with "l" 2 m^2 n +
        2/3 m^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
        >>> Q, L = lapgrad.gelqf(A, positive=True)
        >>> L.round()
        tensor([[5., 0.],
                [4., 3.]])
        >>> torch.allclose(L @ Q, A, atol=1e-5)
        True
    """
    if mode == "reduced" and not is_compiling():
        factors = _take_shortcut(A, positive)
        if factors is not None:
            return LQ(*factors)
    A, positive = check_matrix("gelqf", "A", A), bool(positive)
    if mode == "reduced":
        return LQ(*operator.call(A, positive))
    if mode == "l":
        return operator_l.call(A, positive)
    raise _errors.unknown_option("gelqf", "mode", mode, _MODES)


def _fake(A: Tensor, positive: bool) -> tuple[Tensor, Tensor]:
    m, n = A.shape[-2:]
    return allocate_matrix(A, min(m, n), n), allocate_matrix(A, m, min(m, n))


def _factorise(A: Tensor, positive: bool) -> tuple[Tensor, Tensor]:
    Q, L = _fake(A, positive)
    spoilt = lookup("gelqf", A)(L, Q, A, positive)
    if spoilt is not None:
        raise _errors.factors_not_finite("gelqf", A.shape[:-2], spoilt)
    return Q, L


def _fake_l(A: Tensor, positive: bool) -> Tensor:
    m, n = A.shape[-2:]
    return allocate_matrix(A, m, min(m, n))


def _factorise_l(A: Tensor, positive: bool) -> Tensor:
    L = _fake_l(A, positive)
    spoilt = lookup("gelqf", A)(L, None, A, positive)
    if spoilt is not None:
        raise _errors.factors_not_finite("gelqf", A.shape[:-2], spoilt)
    return L


def _check_rows_later(L: Tensor, columns: int) -> Callable[[], None]:
    """Start the check that no row of A depends on those before it; return a function that raises if one does.

    A row depends on others if its diagonal entry of L is only rounding; ``columns`` is the width of A. On a
    GPU other work can be launched between start and result.
    """
    tolerance = max(L.shape[-2], columns) * torch.finfo(L.dtype).eps
    wait_for_check = lookup("find_dependent_row_later", L)(L, tolerance, False)

    def refuse() -> None:
        found = wait_for_check()
        if found is not None:
            consequence = "The factors of such a matrix have no derivative."
            raise _errors.rank_deficient("gelqf", L.shape[:-2], found, "row", consequence)

    return refuse


def _select_top(A: Tensor, rank: int) -> Tensor:
    """Return the first ``rank`` rows."""
    return A if A.shape[-2] == rank else A[..., :rank, :]


def _compute_vjp(Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    refuse_dependent_rows = _check_rows_later(L, Q.shape[-1])
    gA = _fake_vjp(Q, L, gQ, gL)
    lookup("gelqf_vjp", L)(gA, Q, L, gQ, gL)
    refuse_dependent_rows()
    return gA


def _fake_vjp(Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    return allocate_matrix(L, L.shape[-2], Q.shape[-1])


def _solve_checked(L: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """Return t(L)^-1 B, differentiably. Raises if L has (nearly) a zero on its diagonal."""
    X: Tensor = operator_solve.call(L, B, transpose)
    return X


def compute_vjp_composite(
    Q: Tensor,
    L: Tensor,
    gQ: Tensor | None,
    gL: Tensor | None,
    solve: Callable[[Tensor, Tensor, bool], Tensor] = _solve_checked,
) -> Tensor:
    """gA1 = L1^-T (gQ + Z Q), gA2 = gL2 Q, Z of ``_compute_middle``; L1 has the first r rows, L2 the rest.

    ``solve(L, B, transpose)`` returns t(L)^-1 B.
    """
    rank = L.shape[-1]
    top = _gemm2.multiply(_compute_middle(Q, L, gQ, gL), Q)
    if gQ is not None:
        top = top + gQ
    top = solve(_select_top(L, rank), top, True)
    if L.shape[-2] == rank:
        return top
    bottom = (
        top.new_zeros((*top.shape[:-2], L.shape[-2] - rank, top.shape[-1]))
        if gL is None
        else _gemm2.multiply(gL[..., rank:, :], Q)
    )
    return torch.cat([top, bottom], -2)


def _compute_middle(Q: Tensor | None, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    """Z = K + copyltu(L1^T gL1 - gQ Q^T - K), K = gL2^T L2.

    K = (gL2^T A2) Q^T is what the rows A2 = L2 Q add to gQ Q^T. Below the diagonal it cancels.
    """
    rank = L.shape[-1]
    parts = []
    if gL is not None:
        parts.append(_trmm.multiply(_select_top(L, rank), _select_top(gL, rank).tril(), transpose=True))
    if gQ is not None and Q is not None:
        parts.append(_gemm2.multiply(gQ, Q, transpose_b=True, alpha=-1.0))
    middle = _copyltu.operator.call(parts[0] if len(parts) == 1 else parts[0] + parts[1], True)
    if gL is None or L.shape[-2] == rank:
        return middle
    below = _gemm2.multiply(gL[..., rank:, :], L[..., rank:, :], transpose_a=True)
    return middle + (below - below.mT).triu(1)


def _compute_vjp_l(A: Tensor, L: Tensor, gL: Tensor) -> Tensor:
    refuse_dependent_rows = _check_rows_later(L, A.shape[-1])
    gA = allocate_like(A)
    lookup("gelqf_l_vjp", L)(gA, A, L, gL)
    refuse_dependent_rows()
    return gA


def _compute_vjp_l_composite(A: Tensor, L: Tensor, gL: Tensor) -> Tensor:
    """``compute_vjp_composite`` with Q = L1^-1 A1 and without gQ."""
    rank = L.shape[-1]
    Q = operator_solve.call(_select_top(L, rank), _select_top(A, rank), False)
    return compute_vjp_composite(Q, L, None, gL)


def _solve(L: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """t(L)^-1 B, where B has as many columns as A; refuses an L that is singular up to rounding."""
    refuse_dependent_rows = _check_rows_later(L, B.shape[-1])
    X = allocate_like(B)
    lookup("trsm", B)(X, L, B, lower=True, transpose=transpose, rightside=False)
    refuse_dependent_rows()
    return X


def _vjp_solve(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """As for trsm: gB = t(L)^-T gX, and gL is minus the triangle of the product with X."""
    (L, X), (transpose,) = saved, flags
    gB = _trsm.solve(L, gX, transpose=not transpose)
    first, second = (X, gB) if transpose else (gB, X)
    gL = _gemmt.multiply(first, second, transpose_b=True, alpha=-1.0) if needs[0] else None
    return gL, gB if needs[1] else None


def _jvp_solve(saved: Sequence[Tensor], flags: Sequence[Any], dL: Tensor | None, dB: Tensor | None) -> Tensor:
    """dX = t(L)^-1 (dB - t(dL) X)."""
    (L, X), (transpose,) = saved, flags
    right = dB
    if dL is not None:
        moved = _trmm.multiply(dL, X, transpose=transpose)
        right = -moved if dB is None else dB - moved
    assert right is not None
    return _trsm.solve(L, right, transpose=transpose)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gQ: Tensor | None,
    gL: Tensor | None,
) -> tuple[Tensor]:
    Q, L = saved
    return (operator_vjp.call(Q, L, gQ, gL),)


def _vjp_l(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor) -> tuple[Tensor]:
    A, L = saved
    return (operator_l_vjp.call(A, L, gL),)


def compute_jvp(
    Q: Tensor,
    L: Tensor,
    dA: Tensor,
    solve: Callable[[Tensor, Tensor, bool], Tensor] = _solve_checked,
) -> tuple[Tensor, Tensor]:
    """dQ and dL. With W = L1^-1 dA1, C = W Q^T and X = tril(C + C^T) - diag(C): dL1 = L1 X and dQ = W - X Q.

    A2 = L2 Q then gives dL2 = dA2 Q^T - L2 dQ Q^T = dA2 Q^T - L2 (C - X).
    """
    rank = L.shape[-1]
    L1 = _select_top(L, rank)
    W = solve(L1, _select_top(dA, rank), False)
    C = _gemm2.multiply(W, Q, transpose_b=True)
    X = C.tril() + C.triu(1).mT
    dL = _trmm.multiply(L1, X)
    if L.shape[-2] > rank:
        below = _gemm2.multiply(dA[..., rank:, :], Q, transpose_b=True)
        below = below - _gemm2.multiply(L[..., rank:, :], C - X)
        dL = torch.cat([dL, below], -2)
    return W - _gemm2.multiply(X, Q), dL


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor]:
    Q, L = saved
    return compute_jvp(Q, L, dA)


def _jvp_l(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    A, L = saved
    rank = L.shape[-1]
    Q = operator_solve.call(_select_top(L, rank), _select_top(A, rank), False)
    return compute_jvp(Q, L, dA)[1]


_L_SOLVED, _X = 0, 2

operator_solve = define(
    "gelqf_solve",
    "(Tensor L, Tensor B, bool transpose) -> Tensor",
    kernel=_solve,
    fake=lambda L, B, transpose: B.new_empty(B.shape),
    formulas=Formulas(saves=((_L_SOLVED, _X), (_L_SOLVED,)), vjp=_vjp_solve, jvp=_jvp_solve),
)

operator_vjp = define_fused(
    "gelqf_vjp",
    "(Tensor Q, Tensor L, Tensor? gQ, Tensor? gL) -> Tensor",
    kernel=_compute_vjp,
    fake=_fake_vjp,
    composite=compute_vjp_composite,
)

operator_l_vjp = define_fused(
    "gelqf_l_vjp",
    "(Tensor A, Tensor L, Tensor gL) -> Tensor",
    kernel=_compute_vjp_l,
    fake=lambda A, L, gL: A.new_empty(A.shape),
    composite=_compute_vjp_l_composite,
)

_Q, _L = 1, 2

operator = define(
    "gelqf",
    "(Tensor A, bool positive) -> (Tensor, Tensor)",
    kernel=_factorise,
    fake=_fake,
    formulas=Formulas(saves=((_Q, _L),), vjp=_vjp, jvp=_jvp),
    shortcut=_take_shortcut,
)

_A, _L_ALONE = 0, 1

operator_l = define(
    "gelqf_l",
    "(Tensor A, bool positive) -> Tensor",
    kernel=_factorise_l,
    fake=_fake_l,
    formulas=Formulas(saves=((_A, _L_ALONE),), vjp=_vjp_l, jvp=_jvp_l),
)
