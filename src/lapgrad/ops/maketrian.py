"""maketrian: a triangular matrix from a packed vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _exceptions
from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import check_integer, check_order, check_vector
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import extracttrian as _extracttrian

_take_shortcut = make_shortcut("maketrian")


def maketrian(v: Tensor, *, offset: int = 0, lower: bool = True) -> Tensor:
    """Triangular matrix from a packed vector: (a_00, a_10, a_11, a_20, ...) = v, and zeros elsewhere.

    The inverse of ``extracttrian``.

    Args:
        v: (*batch, k (k + 1) / 2): row by row for a lower triangle, column by column for an upper one.
        offset: Positive: an upper triangle that begins at that diagonal above the main one. Negative: a lower
            triangle that begins at that diagonal below. ``lower`` then has no meaning.
        lower: With ``offset=0``: a lower triangle, else an upper one.

    Returns:
        A, (*batch, n, n) with n = k + |offset|.

    Raises:
        DTypeError, ShapeError, SizeError: ``v`` is not a batch of float32 or float64 vectors of such length.

    Gradient:
        gv = extracttrian(gA, offset, lower). Saves nothing.

    Memory:
        forward 1, backward 1

    Cost:
        n^2 writes.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.maketrian(torch.tensor([1.0, 3.0, 4.0]))
        tensor([[1., 0.],
                [3., 4.]])
    """
    if offset == 0 and not is_compiling() and (shortcut := find_shortcut("maketrian_shortcut")):
        A: Tensor | None = shortcut(v, lower)
        if A is not None:
            return A
    v = check_vector("maketrian", "v", v)
    length = v.shape[-1]
    k = _find_order(length)
    if k * (k + 1) // 2 != length:
        raise _exceptions.ShapeError(
            f"maketrian: the last dimension of v must be k (k + 1) / 2 for some k, "
            f"got shape {tuple(v.shape)}."
        )
    check_integer("maketrian", "offset", offset)
    n = check_order("maketrian", "v", v, k + abs(offset))
    return operator.call(v, n, offset, lower)


def _find_order(length: int) -> int:
    """Return the k with k (k + 1) / 2 = length, if there is one; exact while lengths stay below 2^50.

    In floating point because ``math.isqrt`` takes no symbolic sizes.
    """
    return int((math.sqrt(8 * length + 1) - 1) / 2 + 0.5)


def _make(v: Tensor, n: int, offset: int, lower: bool) -> Tensor:
    A = _fake(v, n, offset, lower)
    lookup("maketrian", v)(A, v, offset, lower)
    return A


def _fake(v: Tensor, n: int, offset: int, lower: bool) -> Tensor:
    return v.new_empty((*v.shape[:-1], n, n))


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gA: Tensor) -> tuple[Tensor]:
    return (_extracttrian.operator.call(gA, *flags),)


operator: Operator = define(
    "maketrian",
    "(Tensor v, SymInt n, int offset, bool lower) -> Tensor",
    kernel=_make,
    fake=_fake,
    formulas=Formulas(saves=((),), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=lambda v, n, offset, lower: None if offset else _take_shortcut(v, lower),
)
