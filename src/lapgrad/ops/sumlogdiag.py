"""sumlogdiag: half of the log determinant, from a triangular factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from lapgrad._kernels.table import lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_square_matrix
from lapgrad.ops import extractdiag as _extractdiag
from lapgrad.ops import makediag as _makediag

_take_shortcut = make_shortcut("sumlogdiag")


def sumlogdiag(A: Tensor) -> Tensor:
    """Sum of the logarithms of the diagonal: s = sum_i log |a_ii|.

    For the Cholesky factor L of a matrix this is half of its log determinant. An exact zero on the diagonal
    gives minus infinity.

    Args:
        A: (*batch, n, n).

    Returns:
        s, (*batch).

    Raises:
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices.

    Gradient:
        gA = diag(gs / a_ii). Saves A.

    Memory:
        forward 1, backward 1

    Cost:
        n logarithms.

    Example:
        >>> import torch, lapgrad
        >>> lapgrad.sumlogdiag(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
        tensor(0.)
    """
    if not is_compiling():
        s: Tensor | None = _take_shortcut(A)
        if s is not None:
            return s
    return operator.call(check_square_matrix("sumlogdiag", "A", A))


def _sum_logs(A: Tensor) -> Tensor:
    s = A.new_empty(A.shape[:-2])
    lookup("sumlogdiag", A)(s, A)
    return s


def _compute_vjp(A: Tensor, gs: Tensor) -> Tensor:
    gA = allocate_like(A)
    lookup("sumlogdiag_vjp", A)(gA, A, gs)
    return gA


def _compute_vjp_composite(A: Tensor, gs: Tensor) -> Tensor:
    """gA = diag(gs / a_ii)."""
    return _makediag.operator.call(gs.unsqueeze(-1) / _extractdiag.operator.call(A, 0), 0)


def _vjp(needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gs: Tensor) -> tuple[Tensor]:
    (A,) = saved
    return (operator_vjp.call(A, gs),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> Tensor:
    """ds = sum_i da_ii / a_ii."""
    (A,) = saved
    return (_extractdiag.operator.call(dA, 0) / _extractdiag.operator.call(A, 0)).sum(-1)


_A = 0

operator_vjp = define_fused(
    "sumlogdiag_vjp",
    "(Tensor A, Tensor gs) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda A, gs: A.new_empty(A.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("sumlogdiag_vjp"),
)

operator = define(
    "sumlogdiag",
    "(Tensor A) -> Tensor",
    kernel=_sum_logs,
    fake=lambda A: A.new_empty(A.shape[:-2]),
    formulas=Formulas(saves=((_A,),), vjp=_vjp, jvp=_jvp),
    shortcut=_take_shortcut,
)
