"""trsm: solve with a triangular matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors
from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Overwriting, define
from lapgrad._torch.layout import allocate_like
from lapgrad.ops import _triangular
from lapgrad.ops import trmm as _trmm

_take_shortcut_again = make_shortcut("trsm_again")


def trsm(
    L: Tensor,
    A: Tensor,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    overwrite: bool = False,
) -> Tensor:
    """Solve with a triangular matrix: X = alpha t(L)^-1 A, or X = alpha A t(L)^-1 with ``rightside=True``.

    t(L) is L^T with ``transpose=True``, else L. Leading dimensions broadcast; one L for a batch of A is one
    solve with more right hand sides.

    Args:
        L: (*batch, n, n), triangular. Only the named triangle is read.
        A: (*batch, n, m), or (*batch, m, n) with ``rightside=True``; or a vector (n).
        transpose: Solve with L^T.
        rightside: L stands on the right of the unknown.
        lower: L is lower triangular, else upper.
        alpha: Scale factor.
        overwrite: Leave the result in the memory of ``A`` and return ``A``.

    Returns:
        X, of the shape of A (with the leading dimensions broadcast); (*batch, n) for a vector.

    Raises:
        SingularMatrixError: Names the first item with an exact zero on the diagonal of L. ``A`` keeps its
            values.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = alpha t(L)^-T gX, and gL = -tri(t(L)^-T gX X^T) (for the other sides and transpositions
        likewise), of which only the triangle is computed. Forward mode: dX = t(L)^-1 (alpha dA - t(tri(dL))
        X). Saves L, and X when L needs a gradient.

    Memory:
        forward 1 (0 with overwrite), backward 1
        In units of the result, and of the gradients of L and A together. Besides: the gradient of A when only
        that of L is wanted; one buffer when alpha is not 1; one when L on the left is shared by a batch of A.

    Cost:
        forward n^2 m, backward 2 n^2 m flops.

    Example:
        >>> import torch, lapgrad
        >>> L = torch.tensor([[2.0, 0.0], [1.0, 2.0]])
        >>> lapgrad.trsm(L, torch.tensor([[2.0], [5.0]]))
        tensor([[1.],
                [2.]])
    """
    # If alpha is a tensor, so is the comparison; it is refused where operands are checked.
    is_unscaled = (alpha == 1.0) is True
    if is_unscaled and not overwrite and not is_compiling() and (shortcut := find_shortcut("trsm_shortcut")):
        X: Tensor | None = shortcut(L, A, lower, transpose, rightside)
        if X is not None:
            return X
    return _triangular.apply(
        "trsm", operator, L, A, lower, transpose, rightside, alpha, overwrite, _refuse_singular
    )


def _refuse_singular(L: Tensor) -> None:
    """Raise the error of a singular L that the kernel would report, without running the kernel."""
    zero = L.diagonal(dim1=-2, dim2=-1) == 0
    if zero.any():
        *item, index = _errors.batch_index(int(zero.flatten().int().argmax()), zero.shape)
        raise _errors.singular("trsm", tuple(item), index)


def _solve(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> Tensor:
    X = allocate_like(A)
    failure = lookup("trsm", A)(X, L, A, lower, transpose, rightside)
    if failure is not None:
        item, index = failure
        raise _errors.singular("trsm", _errors.batch_index(item, L.shape[:-2]), index)
    return X


def _solve_in_place(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    failure = lookup("trsm", A)(A, L, A, lower, transpose, rightside)
    if failure is not None:
        item, index = failure
        raise _errors.singular("trsm", _errors.batch_index(item, L.shape[:-2]), index)


def _solve_again(L: Tensor, A: Tensor, *flags: bool) -> Tensor:
    """``operator.call`` for an L that it has accepted before, without waiting for a GPU again."""
    X: Tensor | None = None if is_compiling() else _take_shortcut_again(L, A, *flags)
    return operator.call(L, A, *flags) if X is None else X


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gX: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """gA = t(L)^-T gX, and gL is minus the gradient of L in the product t(L) X = A with cotangent gA."""
    (L, X), (lower, transpose, rightside) = saved, flags
    if needs[0] and needs[1] and not is_compiling() and (shortcut := find_shortcut("trsm_vjp_shortcut")):
        both: tuple[Tensor, Tensor] | None = shortcut(L, X, gX, *flags)
        if both is not None:
            return both
    gA = _solve_again(L, gX, lower, not transpose, rightside)
    gL = _triangular.compute_triangle_vjp(gA, X, lower, transpose, rightside, -1.0) if needs[0] else None
    return gL, gA if needs[1] else None


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dL: Tensor | None, dA: Tensor | None) -> Tensor:
    """t(L) X = A gives dX = t(L)^-1 (dA - t(dL) X)."""
    (L, X), (lower, transpose, rightside) = saved, flags
    if dL is None:
        right = dA
    else:
        moved = _trmm.operator.call(dL, X, lower, transpose, rightside)
        right = -moved if dA is None else dA - moved
    return operator.call(L, right, lower, transpose, rightside)


_L, _A, _X = 0, 1, 2

operator = define(
    "trsm",
    _triangular.SCHEMA,
    kernel=_solve,
    fake=lambda L, A, lower, transpose, rightside: A.new_empty(A.shape),
    formulas=Formulas(saves=((_L, _X), (_L,)), vjp=_vjp, jvp=_jvp),
    vmap=_triangular.map_batch,
    shortcut=make_shortcut("trsm"),
    overwriting=Overwriting(_A, "A", _solve_in_place),
)


def solve(
    L: Tensor, A: Tensor, *, lower: bool = True, transpose: bool = False, rightside: bool = False
) -> Tensor:
    """Return t(L)^-1 A, or A t(L)^-1, with derivatives; for formulas, whose operands need no checks."""
    X: Tensor = operator.call(L, A, lower, transpose, rightside)
    return X
