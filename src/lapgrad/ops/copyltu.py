"""copyltu: mirror a triangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import find_shortcut, lookup, make_shortcut
from lapgrad._torch.define import Formulas, Operator, Overwriting, define
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad._torch.multilinear import make_jvp
from lapgrad._torch.private import skips_dispatcher

_take_shortcut = make_shortcut("copyltu")


def copyltu(A: Tensor, *, lower: bool = True, overwrite: bool = False) -> Tensor:
    """Symmetric matrix from one triangle: B = tri(A) + tri(A)^T - diag(A).

    Args:
        A: (*batch, n, n). Only the named triangle is read.
        lower: Mirror the lower triangle to the upper one, else the upper to the lower.
        overwrite: Leave the result in the memory of ``A`` and return ``A``.

    Returns:
        B, (*batch, n, n), symmetric.

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = tri(gB + gB^T) - diag(gB): zero on the triangle that is not read. Saves nothing.

    Memory:
        forward 1 (0 with overwrite), backward 1

    Cost:
        n^2 copies.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.copyltu(torch.tensor([[1.0, 9.0], [2.0, 3.0]]))
        tensor([[1., 2.],
                [2., 3.]])
    """
    if not overwrite and not is_compiling():
        B: Tensor | None = _take_shortcut(A, lower)
        if B is not None:
            return B
    A = check_square_matrix("copyltu", "A", A)
    return operator.overwrite(A, lower) if overwrite else operator.call(A, lower)


def _mirror(A: Tensor, lower: bool) -> Tensor:
    B = allocate_like(A)
    lookup("copyltu", A)(B, A, lower)
    return B


def _mirror_in_place(A: Tensor, lower: bool) -> None:
    lookup("copyltu", A)(A, A, lower)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor) -> tuple[Tensor]:
    """The triangle of gB + gB^T, its diagonal halved: an entry counts in both places, a diagonal one once."""
    (lower,) = flags
    if not is_compiling() and (shortcut := find_shortcut("copyltu_vjp_shortcut")):
        gA: Tensor | None = shortcut(gB, lower)
        if gA is not None:
            return (gA,)
    if not skips_dispatcher((gB,)):  # vmap knows no in-place tril, and a diagonal of a DTensor may be a copy
        return (gB.tril() + gB.mT.tril(-1) if lower else gB.triu() + gB.mT.triu(1),)
    gA = gB + gB.mT
    gA = gA.tril_() if lower else gA.triu_()
    gA.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    return (gA,)


_A = 0

operator: Operator = define(
    "copyltu",
    "(Tensor A, bool lower) -> Tensor",
    kernel=_mirror,
    fake=lambda A, lower: A.new_empty(A.shape),
    formulas=Formulas(saves=((),), vjp=_vjp, jvp=make_jvp(lambda: operator)),
    overwriting=Overwriting(_A, "A", _mirror_in_place),
    shortcut=_take_shortcut,
)
