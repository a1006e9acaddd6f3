"""linalg_lu_factor_ex of square matrices with derivatives: P A = L U, stored as L - I + U in one matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import make_shortcut
from lapgrad._torch import private as _torch_private
from lapgrad._torch.define import Formulas, define
from lapgrad._torch.layout import store_expanded
from lapgrad._translation import _torch_functions, solve_triangular
from lapgrad._translation._results import allocate_column_major
from lapgrad._translation.lu import Factors, compute_lu_factor_ex, is_unsafe

#: While larger matrices than this many numbers are factorised, other threads of Python may run.
_LONG = 1000

#: Flags of triangular solves.
_UPPER = _LEFT = True

_take_vjp = make_shortcut("lu_factor_vjp")


def serves_gradient(A: Tensor, *, pivot: bool = True, **_: Any) -> bool:
    """Whether gradients are lapgrad's: those of square matrices on a CPU."""
    return A.is_cpu and pivot and A.shape[-1] == A.shape[-2]


def record_lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Factors:
    """``compute_lu_factor_ex`` with derivatives, for square matrices and pivots."""
    assert pivot
    LU, pivots, info = operator.call(A)
    if check_errors:
        _torch_private.check_status(info, "torch.linalg.lu_factor_ex", A.dim() == 2)
    return LU, pivots, info


def record_lu_factor_ex_eagerly(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Factors:
    """``record_lu_factor_ex`` for plain eager calls, with less overhead."""
    LU, pivots, info = _record_eagerly(A)
    if check_errors:
        _torch_private.check_status(info, "torch.linalg.lu_factor_ex", A.dim() == 2)
    return LU, pivots, info


def _fake(A: Tensor) -> Factors:
    LU = allocate_column_major(A, *A.shape[-2:])
    return LU, A.new_empty(A.shape[:-1], dtype=torch.int32), A.new_empty(A.shape[:-2], dtype=torch.int32)


def _permute(pivots: Tensor, LU: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """P^T B, or with ``transpose`` P B, where P A = L U. (torch's P is our P^T.)"""
    P = torch.lu_unpack(LU.detach(), pivots, unpack_data=False)[0]
    return (P.mT if transpose else P) @ B


def _split(LU: Tensor) -> tuple[Tensor, Tensor]:
    """L with ones on the diagonal, and U."""
    return LU.tril(-1) + torch.eye(LU.shape[-1], dtype=LU.dtype, device=LU.device), LU.triu()


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], g: Tensor | None, *_: None
) -> tuple[Tensor | None]:
    """gA = P^T L^-T (tril(L^T gL, -1) + triu(gU U^T)) U^-T."""
    LU, pivots = saved
    if g is None:
        return (None,)
    if not is_compiling() and (found := _take_vjp(LU, pivots, store_expanded(g))) is not None:
        return (found,)
    L, U = _split(LU)
    middle = (L.mT @ g.tril(-1)).tril(-1) + (g.triu() @ U.mT).triu()
    middle = solve_triangular.operator.call(L.mT, middle, _UPPER, _LEFT)
    middle = solve_triangular.operator.call(U.mT, middle, not _UPPER, not _LEFT)
    return (_permute(pivots, LU, middle, transpose=False),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, None, None]:
    """dL = L tril(M, -1) and dU = triu(M) U with M = L^-1 P dA U^-1."""
    LU, pivots = saved
    L, U = _split(LU)
    M = solve_triangular.operator.call(L, _permute(pivots, LU, dA, transpose=True), not _UPPER, _LEFT)
    M = solve_triangular.operator.call(U, M, _UPPER, not _LEFT)
    return L @ M.tril(-1) + M.triu() @ U, None, None


_LU, _PIVOTS = 1, 2

operator = define(
    "linalg_lu_factor_ex",
    "(Tensor A) -> (Tensor, Tensor, Tensor)",
    kernel=compute_lu_factor_ex,
    fake=_fake,
    formulas=Formulas(saves=((_LU, _PIVOTS),), vjp=_vjp, jvp=_jvp, constant_results=(1, 2)),
)


@functools.cache
def _find_call() -> Any:
    return _torch_functions.make_call("linalg_lu_factor_ex")


def _make_function() -> Any:
    """``apply`` of a ``Function`` for plain eager calls."""

    def forward(ctx: Any, A: Tensor) -> Factors:
        factors: Factors | None = None
        if A.is_cpu and not is_unsafe(A) and (call := _find_call()) is not None:
            factors = call(A.numel() > _LONG, A)
        if factors is None:
            factors = compute_lu_factor_ex(A)
        ctx.mark_non_differentiable(factors[1], factors[2])
        ctx.save_for_backward(factors[0], factors[1])
        ctx.set_materialize_grads(False)
        return factors

    def backward(ctx: Any, g: Tensor | None, *_: None) -> Tensor | None:
        return _vjp((True,), ctx.saved_tensors, (), g)[0]

    return _torch_private.make_single_level_function(
        "linalg_lu_factor_ex", forward=forward, backward=backward
    )


_record_eagerly: Any = _make_function() if _torch_private.AVAILABLE else None
