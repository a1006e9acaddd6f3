"""Common parts of trsm and trmm: checks, one triangle for a batch, the gradient of the triangle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad._torch import layout as _layout
from lapgrad._torch.define import Operator, apply_to_batch
from lapgrad._torch.private import reshape_fresh, skips_dispatcher
from lapgrad.ops import gemmt as _gemmt

SCHEMA = "(Tensor L, Tensor A, bool lower, bool transpose, bool rightside) -> Tensor"


def apply(
    name: str,
    operator: Operator,
    L: Tensor,
    A: Tensor,
    lower: bool,
    transpose: bool,
    rightside: bool,
    alpha: float,
    overwrite: bool,
    refuse: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Check and align the operands of a public call, apply alpha, and call the operator.

    ``refuse`` raises on an L that the kernel would refuse; it is called before operands are overwritten.
    """
    if isinstance(A, Tensor) and A.dim() == 1:
        return _apply_to_vector(name, operator, L, A, lower, transpose, rightside, alpha, overwrite, refuse)
    L, A = _layout.check_square_matrix(name, "L", L), _layout.check_matrix(name, "A", A)
    if L.dtype is not A.dtype or L.device != A.device:
        _layout.check_same_kind(name, L=L, A=A)
    if L.shape[-1] != A.shape[-1 if rightside else -2]:
        wanted = f"L must be n x n and A {'m x n (rightside=True)' if rightside else 'n x m'}"
        raise _errors.shapes_do_not_fit(name, {"L": L, "A": A}, wanted)

    lower, transpose, rightside = bool(lower), bool(transpose), bool(rightside)
    if type(alpha) is not float:
        alpha = _layout.check_factor(name, "alpha", alpha)
    # Slices of shapes take half a microsecond, which is noticeable for a small matrix.
    if alpha == 1.0 and not overwrite and L.dim() == 2 and A.dim() == 2:
        return operator.call(L, A, lower, transpose, rightside)
    same_batch = L.shape[:-2] == A.shape[:-2]
    batch = A.shape[:-2] if same_batch else _layout.broadcast_batch(name, L=L, A=A)
    door = operator.call
    if overwrite:
        if A.shape[:-2] != batch:
            raise _errors.overwritten_broadcast(name, "A", A.shape, (*batch, *A.shape[-2:]))
        if alpha != 1.0:
            L = _scale_in_place(L, A, alpha, refuse)
        door = operator.overwrite
    elif alpha != 1.0:
        A, door = A * alpha, operator.consume
    if same_batch:
        return door(L, A, lower, transpose, rightside)
    if _layout.is_shared(L) and not overwrite:
        return _apply_shared_triangle(operator, L, A, batch, lower, transpose, rightside)
    if A.shape[:-2] != batch:
        A, door = _layout.expand_batch(A, batch), operator.call
    try:
        return door(_layout.expand_batch(L, batch), A, lower, transpose, rightside)
    except _exceptions.SingularMatrixError as error:
        # The kernel counts in the broadcast batch, the caller in that of L.
        own = error.item[len(batch) - (L.dim() - 2) :]
        item = tuple([0 if size == 1 else i for i, size in zip(own, L.shape[:-2], strict=True)])
        raise _errors.singular(name, item, error.index) from None


def _apply_to_vector(name: str, operator: Operator, L: Tensor, A: Tensor, *options: Any) -> Tensor:
    """``apply`` for a vector, which is a column, or with ``rightside`` a row."""
    if isinstance(L, Tensor) and L.dim() >= 2 and A.shape[0] != L.shape[-2]:
        raise _errors.vector_does_not_fit(name, "A", A, "L", L.shape[-2])
    rightside, overwrite = options[2], options[4]
    between = -2 if rightside else -1
    X = apply(name, operator, L, A.unsqueeze(between), *options).squeeze(between)
    return A if overwrite and skips_dispatcher((L, A)) and not X.requires_grad else X


def _scale_in_place(L: Tensor, A: Tensor, alpha: float, refuse: Callable[[Tensor], None] | None) -> Tensor:
    """A := alpha A, after L was checked: an error leaves A as it was. Returns L, or a copy on overlap."""
    plain = skips_dispatcher((L, A))
    if plain and refuse is not None:
        refuse(L)
    if not plain or _layout.may_overlap(L, A):  # addresses are unknown to tracers and transforms
        L = L.clone()
    A.mul_(alpha)
    return L


def _apply_shared_triangle(
    operator: Operator,
    L: Tensor,
    A: Tensor,
    batch: Sequence[int],
    lower: bool,
    transpose: bool,
    rightside: bool,
) -> Tensor:
    """Apply one L to a batch of A in one call with more columns or rows: its gradient then has no batch."""
    m, n = A.shape[-2:]
    items = math.prod(batch)
    L = L.reshape(L.shape[-2:])
    if rightside:
        rows = operator.call(L, A.reshape(items * m, n), lower, transpose, True)
        return reshape_fresh(rows, (*batch, m, n))
    side_by_side = A.reshape(items, m, n).movedim(0, 1).clone(memory_format=torch.contiguous_format)
    columns = operator.consume(L, side_by_side.view(m, items * n), lower, transpose, False)
    apart = columns.view(m, items, n).movedim(1, 0).clone(memory_format=torch.contiguous_format)
    return reshape_fresh(apart, (*batch, m, n))


def map_batch(
    dispatched: Any, batch_size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]
) -> Tensor:
    """The vmap rule. If only A is mapped, the mapped dimension joins the rows or the columns of A."""
    L, A, lower, transpose, rightside = arguments
    if in_dims[0] is not None or in_dims[1] is None:
        return apply_to_batch(dispatched, batch_size, in_dims, arguments)
    beside = -3 if rightside else -2
    A = A.movedim(in_dims[1], beside)
    sizes = (A.shape[beside], A.shape[beside + 1])
    joined = dispatched(L, A.flatten(beside, beside + 1), lower, transpose, rightside)
    return joined.unflatten(beside + 1, sizes).movedim(beside, 0)


def compute_triangle_vjp(
    gB: Tensor, A: Tensor, lower: bool, transpose: bool, rightside: bool, sign: float
) -> Tensor:
    """gL of B = t(L) A or B = A t(L), times ``sign``: the triangle of one product.

    B = L A: gB A^T.   B = L^T A: A gB^T.   B = A L: A^T gB.   B = A L^T: gB^T A.
    """
    first, second = (A, gB) if transpose != rightside else (gB, A)
    return _gemmt.operator.call(first, second, lower, rightside, not rightside, sign)
