"""extracttrian: a triangle of a matrix, packed into a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import check_offset, check_square_matrix
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import maketrian as _maketrian

_take_shortcut = make_shortcut("extracttrian")


def extracttrian(A: Tensor, *, offset: int = 0, lower: bool = True) -> Tensor:
    """A triangle of a matrix, packed into a vector: v = (a_00, a_10, a_11, a_20, ...).

    A lower triangle is packed row by row, an upper one column by column: (a_00, a_01, a_11, a_02, ...).

    Args:
        A: (*batch, n, n).
        offset: Positive: the upper triangle that begins at that diagonal above the main one. Negative: the
            lower triangle that begins at that diagonal below. ``lower`` then has no meaning.
        lower: With ``offset=0``: the lower triangle, else the upper one.

    Returns:
        v, (*batch, k (k + 1) / 2) with k = n - |offset|.

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices, or the
            triangle lies outside.

    Gradient:
        gA = maketrian(gv, offset, lower). Saves nothing.

    Memory:
        forward 1, backward 1

    Cost:
        n^2 / 2 copies.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.extracttrian(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([1., 3., 4.])
    """
    if offset == 0 and not is_compiling() and (shortcut := find_shortcut("extracttrian_shortcut")):
        v: Tensor | None = shortcut(A, lower)
        if v is not None:
            return v
    A = check_square_matrix("extracttrian", "A", A)
    if offset:
        check_offset("extracttrian", A, offset)
    return operator.call(A, A.shape[-1], offset, lower)


def _extract(A: Tensor, n: int, offset: int, lower: bool) -> Tensor:
    v = _fake(A, n, offset, lower)
    lookup("extracttrian", A)(v, A, offset, lower)
    return v


def _fake(A: Tensor, n: int, offset: int, lower: bool) -> Tensor:
    k = n - abs(offset)
    return A.new_empty((*A.shape[:-2], k * (k + 1) // 2))


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gv: Tensor) -> tuple[Tensor]:
    return (_maketrian.operator.call(gv, *flags),)


# n, known from A, travels along for the gradient: while sizes are symbolic, it cannot be found from the
# length of v.
operator: Operator = define(
    "extracttrian",
    "(Tensor A, SymInt n, int offset, bool lower) -> Tensor",
    kernel=_extract,
    fake=_fake,
    formulas=Formulas(saves=((),), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=lambda A, n, offset, lower: None if offset else _take_shortcut(A, lower),
)
