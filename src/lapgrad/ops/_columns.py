"""Right-hand sides that share a matrix, as columns of one solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._torch import layout as _layout
from lapgrad._torch.define import apply_to_batch


def check_operands(
    name: str, argument: str, A: Tensor, other: str, B: Tensor
) -> tuple[Tensor, Tensor, Sequence[int]]:
    """A (n x n) and B (n x m) after checks, of one kind, and their broadcast leading dimensions."""
    A, B = _layout.check_square_matrix(name, argument, A), _layout.check_matrix(name, other, B)
    if A.dtype is not B.dtype or A.device != B.device:
        _layout.check_same_kind(name, **{argument: A, other: B})
    if A.shape[-1] != B.shape[-2]:
        wanted = f"{argument} must be n x n and {other} n x m"
        raise _errors.shapes_do_not_fit(name, {argument: A, other: B}, wanted)
    if A.dim() == 2 and B.dim() == 2:
        return A, B, ()
    if A.shape[:-2] == B.shape[:-2]:
        return A, B, A.shape[:-2]
    return A, B, _layout.broadcast_batch(name, **{argument: A, other: B})


def make_column(name: str, argument: str, A: Tensor, other: str, b: Tensor) -> Tensor:
    """Return the vector b (n,) as a matrix (n, 1); raise if A does not have n rows."""
    if isinstance(A, Tensor) and A.dim() >= 2 and b.shape[0] != A.shape[-2]:
        raise _errors.vector_does_not_fit(name, other, b, argument, A.shape[-2])
    return b[:, None]


def solve_side_by_side(
    solve: Callable[[Tensor, Tensor], Tensor], A: Tensor, B: Tensor, batch: Sequence[int]
) -> Tensor:
    """``solve(A, B)`` with the leading dimensions that A does not have moved to the columns of B.

    Each matrix of A is factorised once, and errors name it by its index in A.
    """
    own = A.shape[:-2]
    if own == batch:
        return solve(A, _layout.expand_batch(B, batch))
    missing = len(batch) - len(own)
    shared = [i for i, size in enumerate(batch) if i < missing or (own[i - missing] == 1 and size != 1)]
    kept = [i for i in range(len(batch)) if i not in shared]
    n, m = B.shape[-2:]
    side_by_side = _layout.expand_batch(B, batch).permute(*kept, len(batch), *shared, len(batch) + 1)
    columns = math.prod([batch[i] for i in shared]) * m
    X = solve(A, side_by_side.reshape(*own, n, columns))
    apart = X.reshape([*[batch[i] for i in kept], X.shape[-2], *[batch[i] for i in shared], m])
    position = {dim: place for place, dim in enumerate([*kept, len(batch), *shared, len(batch) + 1])}
    apart = apart.permute([position[dim] for dim in range(len(batch) + 2)])
    return apart.clone(memory_format=torch.contiguous_format)


def map_batch(
    dispatched: Any, batch_size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]
) -> Any:
    """The vmap rule. If only the right-hand side is mapped, the mapped dimension joins its columns."""
    A, B, *flags = arguments
    if in_dims[0] is not None or in_dims[1] is None:
        return apply_to_batch(dispatched, batch_size, in_dims, arguments)
    B = B.movedim(in_dims[1], -2)
    sizes = B.shape[-2:]
    results = dispatched(A, B.flatten(-2, -1), *flags)
    X, *further = results if isinstance(results, tuple) else (results,)
    apart = X.unflatten(-1, sizes).movedim(-2, 0)
    if not further:
        return apart
    return apart, *[result.expand(batch_size, *result.shape) for result in further]
