"""makediag: a matrix with a given diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import check_integer, check_order, check_vector
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import extractdiag as _extractdiag

_take_shortcut = make_shortcut("makediag")


def makediag(d: Tensor, *, offset: int = 0) -> Tensor:
    """Matrix with a given diagonal: a_{i, i+offset} = d_i, or a_{i-offset, i} for a negative offset.

    Args:
        d: (*batch, k).
        offset: Which diagonal: 0 the main one, positive above it, negative below.

    Returns:
        A, (*batch, n, n) with n = k + |offset|.

    Raises:
        DTypeError, ShapeError, SizeError: ``d`` is not a batch of float32 or float64 vectors.

    Gradient:
        gd = extractdiag(gA, offset). Saves nothing.

    Memory:
        forward 1, backward 1

    Cost:
        n^2 writes.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.makediag(torch.tensor([5.0]), offset=-1)
        tensor([[0., 0.],
                [5., 0.]])
    """
    if offset == 0 and not is_compiling() and (shortcut := find_shortcut("makediag_shortcut")):
        A: Tensor | None = shortcut(d)
        if A is not None:
            return A
    d = check_vector("makediag", "d", d)
    check_integer("makediag", "offset", offset)
    check_order("makediag", "d", d, d.shape[-1] + abs(offset))
    return operator.call(d, offset)


def _make(d: Tensor, offset: int) -> Tensor:
    A = _fake(d, offset)
    lookup("makediag", d)(A, d, offset)
    return A


def _fake(d: Tensor, offset: int) -> Tensor:
    n = d.shape[-1] + abs(offset)
    return d.new_empty((*d.shape[:-1], n, n))


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gA: Tensor) -> tuple[Tensor]:
    return (_extractdiag.operator.call(gA, *flags),)


operator: Operator = define(
    "makediag",
    "(Tensor d, int offset) -> Tensor",
    kernel=_make,
    fake=_fake,
    formulas=Formulas(saves=((),), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=lambda d, offset: None if offset else _take_shortcut(d),
    recorded=torch.diag_embed,
)
