"""linalg_qr: what ``gelqf`` computes of the transpose, A^T = L Q^T, with R = L^T.

On the CPU the signs are LAPACK's, as torch's are. On CUDA the diagonal of R is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch import private as _torch_private
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_matrix, store_expanded
from lapgrad._translation import solve_triangular
from lapgrad._translation._results import allocate_column_major
from lapgrad._translation._torch_kernels import run_torch
from lapgrad.ops import gelqf as _gelqf

_take_shortcut = make_shortcut("qr_by_columns")
_take_vjp = make_shortcut("qr_vjp")


def serves_qr(A: Tensor, mode: str = "reduced") -> bool:
    """Whether lapgrad computes this mode: the reduced Q, or R alone."""
    return mode in ("reduced", "r") or (mode == "complete" and A.shape[-2] <= A.shape[-1])


def compute_qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Q and R, column-major; with mode "r" an empty tensor for Q."""
    if not serves_qr(A, mode):
        Q, R = run_torch("linalg_qr", A, mode)
        return Q, R
    if mode != "r":
        return _factor(A)
    m, n = A.shape[-2:]
    R = allocate_column_major(A, min(m, n), n)
    if lookup("gelqf", A)(R.mT, None, A.mT, False) is None:
        return A.new_empty((0,)), R
    Q, R = run_torch("linalg_qr", A, mode)
    return Q, R


def record_qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """``compute_qr`` with derivatives, which need Q."""
    assert mode != "r"
    assert serves_qr(A, mode)
    Q, R = operator.call(A)
    return Q, R


def record_qr_eagerly(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """``record_qr`` for plain eager calls, with less overhead."""
    assert mode != "r"
    if A.is_cpu:
        try:
            Q, R = _record_finite(A)
            return Q, R
        except _NotServedError:
            pass
    return record_qr(A, mode)


class _NotServedError(Exception):
    """A matrix has a NaN or an infinity, or a call is out of the ordinary; ``record_qr`` has these."""


def _factor(A: Tensor) -> tuple[Tensor, Tensor]:
    if A.is_cpu and not is_compiling() and (found := _take_shortcut(A)) is not None:
        Q, R = found
        return Q, R
    Q, R = _fake(A)
    if lookup("gelqf", A)(R.mT, Q.mT, A.mT, False) is not None:
        Q, R = run_torch("linalg_qr", A, "reduced")
    return Q, R


def _fake(A: Tensor) -> tuple[Tensor, Tensor]:
    m, n = A.shape[-2:]
    k = min(m, n)
    return allocate_column_major(A, m, k), allocate_column_major(A, k, n)


def _pull_back(Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    """The gradient of A = L Q with respect to A; not finite, or huge, where rows of A are dependent."""
    gA = allocate_matrix(L, L.shape[-2], Q.shape[-1])
    lookup("gelqf_vjp", L)(gA, Q, L, gQ, gL)
    return gA


def _solve(L: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """t(L)^-1 B for a lower triangle, infinite where L is singular."""
    X: Tensor = solve_triangular.operator.call(L.mT if transpose else L, B, transpose, True)
    return X


def _pull_back_by_composite(Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    return _gelqf.compute_vjp_composite(Q, L, gQ, gL, _solve)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gQ: Tensor | None,
    gR: Tensor | None,
) -> tuple[Tensor]:
    Q, R = saved
    if not is_compiling():
        gQ, gR = store_expanded(gQ), store_expanded(gR)
        if (found := _take_vjp(Q, R, gQ, gR)) is not None:
            return (found,)
    cotangents = [None if g is None else g.mT for g in (gQ, gR)]
    gradient: Tensor = operator_vjp.call(Q.mT, R.mT, *cotangents)
    return (gradient.mT,)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor]:
    Q, R = saved
    dQ, dL = _gelqf.compute_jvp(Q.mT, R.mT, dA.mT, _solve)
    return dQ.mT, dL.mT


operator_vjp = define_fused(
    "linalg_qr_vjp",
    "(Tensor Q, Tensor L, Tensor? gQ, Tensor? gL) -> Tensor",
    kernel=_pull_back,
    fake=lambda Q, L, gQ, gL: allocate_matrix(L, L.shape[-2], Q.shape[-1]),
    composite=_pull_back_by_composite,
)

_Q, _R = 1, 2

operator = define(
    "linalg_qr",
    "(Tensor A) -> (Tensor, Tensor)",
    kernel=_factor,
    fake=_fake,
    formulas=Formulas(saves=((_Q, _R),), vjp=_vjp, jvp=_jvp),
)


def _make_function() -> Any:
    """``apply`` of a ``Function`` of one matrix, or a batch, whose entries are finite."""

    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] | None = _take_shortcut(A)
        if found is None:
            raise _NotServedError
        ctx.save_for_backward(*found)
        ctx.set_materialize_grads(False)
        return found

    def backward(ctx: Any, gQ: Tensor | None, gR: Tensor | None) -> Tensor | None:
        if gQ is None and gR is None:
            return None
        return _vjp((True,), ctx.saved_tensors, (), gQ, gR)[0]

    return _torch_private.make_single_level_function("linalg_qr", forward=forward, backward=backward)


_record_finite: Any = _make_function() if _torch_private.AVAILABLE else None
