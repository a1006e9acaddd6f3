"""extractdiag: a diagonal of a matrix, as a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, define
from lapgrad._torch.layout import check_offset, check_square_matrix
from lapgrad._torch.multilinear import make_jvp
from lapgrad.ops import makediag as _makediag

_take_shortcut = make_shortcut("extractdiag")


def extractdiag(A: Tensor, *, offset: int = 0) -> Tensor:
    """A diagonal of a matrix: d_i = a_{i, i+offset}, or a_{i-offset, i} for a negative offset.

    Args:
        A: (*batch, n, n).
        offset: Which diagonal: 0 the main one, positive above it, negative below.

    Returns:
        d, (*batch, n - |offset|). Never a view of A.

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices, or the
            diagonal lies outside.

    Gradient:
        gA = makediag(gd, offset). Saves nothing.

    Memory:
        forward 1, backward 1

    Cost:
        n copies.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.extractdiag(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), offset=1)
        tensor([2.])
    """
    if offset == 0 and not is_compiling() and (shortcut := find_shortcut("extractdiag_shortcut")):
        d: Tensor | None = shortcut(A)
        if d is not None:
            return d
    A = check_square_matrix("extractdiag", "A", A)
    if offset:
        check_offset("extractdiag", A, offset)
    return operator.call(A, offset)


def _extract(A: Tensor, offset: int) -> Tensor:
    d = _fake(A, offset)
    lookup("extractdiag", A)(d, A, offset)
    return d


def _fake(A: Tensor, offset: int) -> Tensor:
    return A.new_empty((*A.shape[:-2], A.shape[-1] - abs(offset)))


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gd: Tensor) -> tuple[Tensor]:
    return (_makediag.operator.call(gd, *flags),)


operator: Operator = define(
    "extractdiag",
    "(Tensor A, int offset) -> Tensor",
    kernel=_extract,
    fake=_fake,
    formulas=Formulas(saves=((),), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    shortcut=lambda A, offset: None if offset else _take_shortcut(A),
    recorded=lambda A, offset: A.diagonal(offset, -2, -1).clone(memory_format=torch.contiguous_format),
)
