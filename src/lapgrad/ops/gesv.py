"""gesv: solve with a general square matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, apply_to_batch, define, define_fused
from lapgrad._torch.layout import allocate_like
from lapgrad.ops import _columns
from lapgrad.ops import gemm2 as _gemm2

_take_shortcut = make_shortcut("gesv")


def gesv(A: Tensor, B: Tensor, *, transpose: bool = False) -> Tensor:
    """Solve with a general square matrix: X = A^-1 B, or X = A^-T B with ``transpose=True``.

    By LU factorisation with partial pivoting. A matrix that is singular up to rounding has a solution of
    large numbers; only one with an exact zero pivot is refused. For symmetric positive definite matrices
    ``linalg.solve_psd`` takes half of the work. Leading dimensions broadcast; one A for a batch of B is one
    factorisation and one solve with more right-hand sides.

    Args:
        A: (*batch, n, n).
        B: (*batch, n, m), or a vector (n).
        transpose: Solve with the transpose of A.

    Returns:
        X, of the shape of B (with the leading dimensions broadcast); (*batch, n) for a vector.

    Raises:
        SingularMatrixError: Names the first item of A with an exact zero pivot, and the pivot.
        NonFiniteError: A NaN or an infinity was met in A, or the factorisation overflows.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gB = A^-T gX, gA = -gB X^T; with ``transpose`` gB = A^-1 gX, gA = -X gB^T. Forward mode:
        dX = A^-1 (dB - dA X). Saves A and its LU factors, and X when A needs a gradient.

    Memory:
        forward 2, backward 1
        In units of a square result (the other buffer is the factors), and of the gradients of A and B
        together. Besides: the n row exchanges, and two copies of B when A is shared by a batch of B.

    Cost:
        forward 2/3 n^3 + 2 n^2 m, backward 4 n^2 m flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
        >>> lapgrad.gesv(A, torch.tensor([4.0, 5.0]))
        tensor([3., 2.])
    """
    if not is_compiling():
        X: Tensor | None = _take_shortcut(A, B, transpose)
        if X is not None:
            return X
    if isinstance(B, Tensor) and B.dim() == 1:
        if isinstance(A, Tensor) and A.dim() >= 2 and B.shape[0] != A.shape[-2]:
            raise _errors.vector_does_not_fit("gesv", "B", B, "A", A.shape[-2])
        return gesv(A, B[:, None], transpose=transpose).squeeze(-1)
    transpose = bool(transpose)
    A, B, batch = _columns.check_operands("gesv", "A", A, "B", B)
    return _columns.solve_side_by_side(lambda A, B: operator.call(A, B, transpose)[0], A, B, batch)


def _factorise_and_solve(A: Tensor, B: Tensor, transpose: bool) -> tuple[Tensor, Tensor, Tensor]:
    results = _fake(A, B, transpose)
    failure = lookup("gesv", A)(*results, A, B, transpose)
    if failure is not None:
        raise _errors.elimination_failed("gesv", A.shape[:-2], failure)
    return results


def _fake(A: Tensor, B: Tensor, transpose: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return uninitialised X, LU (*batch, n, n) and pivots (*batch, n + 1).

    Only the kernels of one device read LU and pivots, so each has its own layout of the factors.
    """
    pivots = A.new_empty((*A.shape[:-2], A.shape[-1] + 1), dtype=torch.int32)
    return B.new_empty(B.shape), A.new_empty(A.shape), pivots


def _solve_again(A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> Tensor:
    X = allocate_like(B)
    lookup("gesv_factored", B)(X, LU, pivots, B, transpose)
    return X


def _solve_again_composite(A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, transpose: bool) -> Tensor:
    """A^-1 B, or A^-T B, as a function of A: the factors are constants."""
    X: Tensor = operator.call(A, B, transpose)[0]
    return X


def _vmap_solve_again(
    dispatched: Any, batch_size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]
) -> Any:
    """Mapped over the right-hand side only, the mapped dimension joins its columns."""
    A, LU, pivots, B, transpose = arguments
    if any(dim is not None for dim in in_dims[:3]):
        return apply_to_batch(dispatched, batch_size, in_dims, arguments)
    return _columns.map_batch(
        lambda A, B: dispatched(A, LU, pivots, B, transpose), batch_size, (None, in_dims[3]), (A, B)
    )


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor | None, *others: None
) -> tuple[Tensor | None, Tensor | None]:
    """gB = A^-T gX, gA = -gB X^T; with ``transpose`` gB = A^-1 gX, gA = -X gB^T."""
    (A, X, LU, pivots), (transpose,) = saved, flags
    if gX is None:
        return None, None
    gB = operator_again.call(A, LU, pivots, gX, not transpose)
    left, right = (X, gB) if transpose else (gB, X)
    gA = _gemm2.multiply(left, right, transpose_b=True, alpha=-1.0) if needs[0] else None
    return gA, gB if needs[1] else None


def _jvp(
    saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor | None, dB: Tensor | None
) -> tuple[Tensor, None, None]:
    """A X = B gives dX = A^-1 (dB - dA X), with A^T and dA^T for the transpose."""
    (A, X, LU, pivots), (transpose,) = saved, flags
    right = dB
    if dA is not None:
        moved = _gemm2.operator.call(dA, X, transpose, False, -1.0)
        right = moved if dB is None else dB + moved
    return operator_again.call(A, LU, pivots, right, transpose), None, None


operator_again = define_fused(
    "gesv_again",
    "(Tensor A, Tensor LU, Tensor pivots, Tensor B, bool transpose) -> Tensor",
    kernel=_solve_again,
    fake=lambda A, LU, pivots, B, transpose: B.new_empty(B.shape),
    composite=_solve_again_composite,
    vmap=_vmap_solve_again,
)

_A, _X, _LU, _PIVOTS = 0, 2, 3, 4

operator = define(
    "gesv",
    "(Tensor A, Tensor B, bool transpose) -> (Tensor, Tensor, Tensor)",
    kernel=_factorise_and_solve,
    fake=_fake,
    formulas=Formulas(
        saves=((_A, _X, _LU, _PIVOTS), (_A, _LU, _PIVOTS)), vjp=_vjp, jvp=_jvp, constant_results=(1, 2)
    ),
    vmap=_columns.map_batch,
)
