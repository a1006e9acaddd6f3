"""linalg_solve_triangular and the older triangular_solve: what ``trsm`` computes; zeros on the diagonal give
infinities, as in torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch import layout as _layout
from lapgrad._torch import private as _torch_private
from lapgrad._torch.define import Formulas, define
from lapgrad._translation import _torch_functions
from lapgrad._translation._results import allocate_column_major_batch
from lapgrad._translation._torch_kernels import run_torch
from lapgrad.ops import _triangular
from lapgrad.ops import trmm as _trmm

#: With this few right-hand sides a triangle is read at the speed of memory. Above this order torch's BLAS is
#: faster than the core at batches of them, and only the gradient gains. (The shortcut decides more exactly.)
_FEW_COLUMNS, _LARGEST_SMALL_ORDER = 2, 24

#: While larger triangles than this are solved with, other threads of Python may run.
_LONG = 10_000

_take_vjp = make_shortcut("solve_triangular_vjp")
_solve_by_columns = make_shortcut("solve_triangular_by_columns")


def compute_solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A X = B, or X A = B, column-major; torch's result for a unit or a singular triangle."""
    if unitriangular:
        return _solve_by_torch(A, B, upper, left, True)
    return _solve(*_expand_to_common_batch(A, B), upper, left)


def record_solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """``compute_solve_triangular`` with derivatives, for triangles whose diagonal is read."""
    assert not unitriangular
    return operator.call(*_expand_to_common_batch(A, B), upper, left)


def record_solve_triangular_eagerly(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """``record_solve_triangular`` for plain eager calls, with less overhead."""
    assert not unitriangular
    A, B = _expand_to_common_batch(A, B)
    X: Tensor = _record_eagerly[upper, left](A, B)
    return X


def compute_triangular_solve(
    B: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """X with t(A) X = B, column-major, and a column-major copy of A."""
    if unitriangular:
        solution, copy = run_torch("triangular_solve", B, A, upper, transpose, True)
        return solution, copy
    A, B = _expand_to_common_batch(A, B)
    X = _solve(A.mT, B, not upper, True) if transpose else _solve(A, B, upper, True)
    copy = allocate_column_major_batch(A, A.shape[:-2], *A.shape[-2:])
    return X, copy.copy_(A)


def _expand_to_common_batch(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    if A.dim() == 2 and B.dim() == 2:
        return A, B
    batch = A.shape[:-2]
    if batch == B.shape[:-2]:
        return A, B
    batch = _layout.broadcast_shapes(batch, B.shape[:-2])
    return _layout.expand_batch(A, batch), _layout.expand_batch(B, batch)


def _solve(A: Tensor, B: Tensor, upper: bool, left: bool) -> Tensor:
    if B.is_cpu and not is_compiling() and (solution := _solve_by_columns(A, B, upper, left)) is not None:
        return cast(Tensor, solution)
    return _solve_large(A, B, upper, left)


def _solve_large(A: Tensor, B: Tensor, upper: bool, left: bool) -> Tensor:
    """``_solve`` for calls that the shortcut does not serve."""
    if B.is_cpu and B.shape[-1 if left else -2] <= _FEW_COLUMNS and A.shape[-1] > _LARGEST_SMALL_ORDER:
        return _solve_by_torch(A, B, upper, left, False)
    # Of torch's factorisations and solves, only this one is called with negated views (`z.conj().imag`).
    A, B = A.resolve_neg(), B.resolve_neg()
    X = allocate_column_major_batch(B, B.shape[:-2], *B.shape[-2:])
    if lookup("trsm", B)(X, A, B, not upper, False, not left) is None:
        return X
    return _solve_by_torch(A, B, upper, left, False)


def _solve_by_torch(A: Tensor, B: Tensor, upper: bool, left: bool, unitriangular: bool) -> Tensor:
    X: Tensor | None = None
    if type(A) is Tensor and type(B) is Tensor and B.is_cpu and (call := _find_call()) is not None:
        X = call(A.numel() > _LONG, A, B, upper=upper, left=left, unitriangular=unitriangular)
    if X is None:
        X = run_torch("linalg_solve_triangular", A, B, upper=upper, left=left, unitriangular=unitriangular)
    return X


@functools.cache
def _find_call() -> Any:
    return _torch_functions.make_call("linalg_solve_triangular")


def _fake(A: Tensor, B: Tensor, upper: bool, left: bool) -> Tensor:
    return allocate_column_major_batch(B, B.shape[:-2], *B.shape[-2:])


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """gB = A^-T gX, and gA = -tri(gB X^T); on the right gB = gX A^-T and gA = -tri(X^T gB)."""
    (A, X), (upper, left) = saved, flags
    both = None if is_compiling() else _take_vjp(A, X if needs[0] else None, gX, upper, left)
    if both is not None:
        return both[0], both[1] if needs[1] else None
    gB = operator.call(A.mT, gX, not upper, left)
    gA = None
    if needs[0]:
        gA = _triangular.compute_triangle_vjp(gB, X, not upper, False, not left, -1.0)
    return gA, gB if needs[1] else None


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor | None, dB: Tensor | None) -> Tensor:
    """A X = B gives dX = A^-1 (dB - tri(dA) X), and X A = B gives dX = (dB - X tri(dA)) A^-1."""
    (A, X), (upper, left) = saved, flags
    if dA is None:
        return operator.call(A, dB, upper, left)
    moved = _trmm.operator.call(dA, X, not upper, False, not left)
    return operator.call(A, -moved if dB is None else dB - moved, upper, left)


def _make_function(upper: bool, left: bool) -> Any:
    """``apply`` of a ``Function`` for plain eager calls."""

    def forward(ctx: Any, A: Tensor, B: Tensor) -> Tensor:
        X: Tensor | None = _solve_by_columns(A, B, upper, left)
        if X is None:
            X = _solve_large(A, B, upper, left)
        ctx.save_for_backward(A, X if ctx.needs_input_grad[0] else None)
        return X

    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _vjp(ctx.needs_input_grad, ctx.saved_tensors, (upper, left), gX)

    return _torch_private.make_single_level_function(
        "linalg_solve_triangular", forward=forward, backward=backward
    )


#: By (upper, left): flags would have to be passed and kept.
_record_eagerly: dict[tuple[bool, bool], Any] = {}
if _torch_private.AVAILABLE:
    _record_eagerly = {
        (upper, left): _make_function(upper, left) for upper in (False, True) for left in (False, True)
    }

_A, _B, _X = 0, 1, 2

operator = define(
    "linalg_solve_triangular",
    "(Tensor A, Tensor B, bool upper, bool left) -> Tensor",
    kernel=_solve,
    fake=_fake,
    formulas=Formulas(saves=((_A, _X), (_A,)), vjp=_vjp, jvp=_jvp),
)
