"""trmm: multiply by a triangular matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, Overwriting, define
from lapgrad._torch.layout import allocate_like
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import _triangular


def trmm(
    L: Tensor,
    A: Tensor,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    overwrite: bool = False,
) -> Tensor:
    """Multiply by a triangular matrix: B = alpha t(L) A, or B = alpha A t(L) with ``rightside=True``.

    t(L) is L^T with ``transpose=True``, else L. Leading dimensions broadcast; one L for a batch of A is one
    product with more columns.

    Args:
        L: (*batch, n, n), triangular. Only the named triangle is read.
        A: (*batch, n, m), or (*batch, m, n) with ``rightside=True``; or a vector (n).
        transpose: Multiply by L^T.
        rightside: L stands on the right.
        lower: L is lower triangular, else upper.
        alpha: Scale factor.
        overwrite: Leave the result in the memory of ``A`` and return ``A``. When L needs a gradient, a copy
            of A is kept for it.

    Returns:
        B, of the shape of A (with the leading dimensions broadcast).

    Raises:
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 matrices that
            fit.

    Gradient:
        gA = alpha t(L)^T gB, and gL = alpha tri(gB A^T) (for the other sides and transpositions likewise), of
        which only the triangle is computed. Forward mode: dB = alpha (t(tri(dL)) A + t(L) dA). Saves L when A
        needs a gradient, and A when L does.

    Memory:
        forward 1 (0 with overwrite), backward 1
        In units of the result, and of the gradients of L and A together. Besides: one buffer when alpha is
        not 1; one when L on the left is shared by a batch of A.

    Cost:
        forward n^2 m, backward 2 n^2 m flops: half of a full product.

    Example:
        >>> import torch, lapgrad
        >>> L = torch.tensor([[2.0, 0.0], [1.0, 2.0]])
        >>> lapgrad.trmm(L, torch.tensor([[1.0], [2.0]]))
        tensor([[2.],
                [5.]])
    """
    # If alpha is a tensor, so is the comparison; it is refused where operands are checked.
    is_unscaled = (alpha == 1.0) is True
    if is_unscaled and not overwrite and not is_compiling() and (shortcut := find_shortcut("trmm_shortcut")):
        X: Tensor | None = shortcut(L, A, lower, transpose, rightside)
        if X is not None:
            return X
    return _triangular.apply("trmm", operator, L, A, lower, transpose, rightside, alpha, overwrite)


def _multiply(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> Tensor:
    B = allocate_like(A)
    lookup("trmm", A)(B, L, A, lower, transpose, rightside)
    return B


def _multiply_in_place(L: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool) -> None:
    lookup("trmm", A)(A, L, A, lower, transpose, rightside)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """B = t(L) A gives gA = t(L)^T gB and gL = tri(gB A^T), the other sides and transpositions likewise."""
    (L, A), (lower, transpose, rightside) = saved, flags
    if needs[0] and needs[1] and not is_compiling() and (shortcut := find_shortcut("trmm_vjp_shortcut")):
        both: tuple[Tensor, Tensor] | None = shortcut(L, A, gB, *flags)
        if both is not None:
            return both
    gL = _triangular.compute_triangle_vjp(gB, A, lower, transpose, rightside, 1.0) if needs[0] else None
    gA = operator.call(L, gB, lower, not transpose, rightside) if needs[1] else None
    return gL, gA


_L, _A = 0, 1

operator: Operator = define(
    "trmm",
    _triangular.SCHEMA,
    kernel=_multiply,
    fake=lambda L, A, lower, transpose, rightside: A.new_empty(A.shape),
    formulas=Formulas(saves=((_A,), (_L,)), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    vmap=_triangular.map_batch,
    shortcut=make_shortcut("trmm"),
    overwriting=Overwriting(_A, "A", _multiply_in_place),
)


def multiply(
    L: Tensor, A: Tensor, *, lower: bool = True, transpose: bool = False, rightside: bool = False
) -> Tensor:
    """Return t(L) A, or A t(L), with derivatives; for formulas, whose operands need no checks."""
    B: Tensor = operator.call(L, A, lower, transpose, rightside)
    return B
