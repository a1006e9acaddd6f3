"""linalg_cholesky_ex and the older cholesky: what ``potrf`` computes, with torch's status and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch import private as _torch_private
from lapgrad._torch.define import Formulas, define
from lapgrad._translation._results import allocate_column_major, allocate_status
from lapgrad._translation._torch_kernels import run_torch
from lapgrad.ops import potrf as _potrf

_take_shortcut = make_shortcut("cholesky_by_columns")
_take_status = make_shortcut("status_of_success")


def compute_cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the factor, column-major, and info; those of torch where a matrix is not positive definite."""
    L, info = _factor(A, upper)
    if check_errors:
        _torch_private.check_status(info, "linalg.cholesky_ex", A.dim() == 2)
    return L, info


def record_cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """``compute_cholesky_ex`` with derivatives; a matrix that failed has gradient zero."""
    L, info = operator.call(A, upper)
    if check_errors:
        _torch_private.check_status(info, "linalg.cholesky_ex", A.dim() == 2)
    return L, info


def record_cholesky_ex_eagerly(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """``record_cholesky_ex`` for plain eager calls, with less overhead."""
    if A.is_cpu:
        try:
            L = _record_definite[upper](A)
            return L, _make_status(A)
        except _NotPositiveDefiniteError:
            pass
    return record_cholesky_ex(A, upper=upper, check_errors=check_errors)


def compute_cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """Return the factor, column-major; raises torch's error where a matrix is not positive definite."""
    L, info = _factor(A, upper)
    _torch_private.check_status(info, "cholesky", A.dim() == 2)
    return L


def record_cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """``compute_cholesky`` with derivatives."""
    L, info = operator.call(A, upper)
    _torch_private.check_status(info, "cholesky", A.dim() == 2)
    return L


def record_cholesky_eagerly(A: Tensor, upper: bool = False) -> Tensor:
    """``record_cholesky`` for plain eager calls, with less overhead."""
    if A.is_cpu:
        try:
            factor: Tensor = _record_definite[upper](A)
            return factor
        except _NotPositiveDefiniteError:
            pass
    return record_cholesky(A, upper)


class _NotPositiveDefiniteError(Exception):
    """A matrix has no Cholesky factor; the caller then computes status and partial results by torch."""


def _make_function(upper: bool) -> Any:
    """``apply`` of a ``Function`` of one matrix, or a batch, that has a factor."""

    def forward(ctx: Any, A: Tensor) -> Tensor:
        L: Tensor | None = _take_shortcut(A, upper)
        if L is None:
            n = A.shape[-1]
            L = allocate_column_major(A, n, n)
            if lookup("potrf", A)(L, A, not upper, None) is not None:
                raise _NotPositiveDefiniteError
        ctx.save_for_backward(L)
        return L

    def backward(ctx: Any, gL: Tensor) -> Tensor:
        gA: Tensor = _potrf.operator_vjp.call(*ctx.saved_tensors, gL, None, not upper)
        return gA

    return _torch_private.make_single_level_function("linalg_cholesky_ex", forward=forward, backward=backward)


#: One function for the lower triangle and one for the upper: a flag would have to be passed and saved.
_record_definite: tuple[Any, ...] = ()
if _torch_private.AVAILABLE:
    _record_definite = _make_function(upper=False), _make_function(upper=True)


def _make_status(A: Tensor) -> Tensor:
    info: Tensor | None = _take_status(A)
    return allocate_status(A) if info is None else info


def _factor(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    if A.is_cpu and not is_compiling() and (factor := _take_shortcut(A, upper)) is not None:
        return factor, _make_status(A)
    n = A.shape[-1]
    L, info = allocate_column_major(A, n, n), allocate_status(A)
    if A.is_cuda:
        # Asking whether the factorisation failed would make the host wait, which torch does not do either.
        # A factor that failed is the identity here. lapgrad's status is negative for a NaN, torch's is not.
        lookup("potrf", A)(L, A, not upper, info)
        return L, info.abs_()
    if lookup("potrf", A)(L, A, not upper, None) is None:
        return L, info
    factor, codes = run_torch("linalg_cholesky_ex", A, upper=upper)
    return factor, codes


def _fake(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    return allocate_column_major(A, A.shape[-1], A.shape[-1]), A.new_empty(A.shape[:-2], dtype=torch.int32)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gL: Tensor, _: None
) -> tuple[Tensor]:
    (L, info), (upper,) = saved, flags
    return (_potrf.operator_vjp.call(L, gL, info, not upper),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, None]:
    (L, info), (upper,) = saved, flags
    dA = dA.masked_fill((info != 0)[..., None, None], 0.0)
    return _potrf.compute_jvp(L, dA, not upper), None


_L, _INFO = 1, 2

operator = define(
    "linalg_cholesky_ex",
    "(Tensor A, bool upper) -> (Tensor, Tensor)",
    kernel=_factor,
    fake=_fake,
    formulas=Formulas(saves=((_L, _INFO),), vjp=_vjp, jvp=_jvp, constant_results=(1,)),
)
