"""torch's LU functions, made safe for batches on several CPU threads.

torch factorises a batch by calling MKL's getrf from its own parallel loop. From a certain order on, MKL plans
for a team of threads that it does not get there. The call then hangs, fails with "Parameter 6 was incorrect
on entry to DLASWP", or returns wrong factors without an error (seen with torch 2.11 and 2.13, on AMD and
Intel; docs/known_problems_in_torch.md).

The functions here have the names and results of torch's, and its derivatives. A batch that could meet the
fault is factorised matrix by matrix: outside of that loop, MKL is right with any number of threads. lapgrad,
its tests and its benchmarks call torch's LU through this module only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad._torch.layout import broadcast_shapes

#: getrf works without blocks, and so without threads, up to the size of one block. The smallest block of
#: LAPACK is 32; with MKL the fault was seen from order 129 on.
LARGEST_UNBLOCKED_ORDER = 32


class LogDeterminant(NamedTuple):
    """Sign and logarithm of a determinant, as ``torch.linalg.slogdet`` names them."""

    sign: Tensor
    logabsdet: Tensor


def lu_factor(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return LU (*batch, n, n) and pivots (*batch, n) of ``torch.linalg.lu_factor_ex``, singular or not."""
    factors, pivots = _call_by_item(lambda A: torch.linalg.lu_factor_ex(A)[:2], A)
    return factors, pivots


def lu_factor_into(LU: Tensor, pivots: Tensor, A: Tensor) -> None:
    """Write what ``lu_factor`` returns; without a copy if LU is stored by columns, and pivots by rows."""
    if A.device.type == "cpu":
        factors, exchanges = lu_factor(A)
        LU.copy_(factors)
        pivots.copy_(exchanges)
        return
    code = torch.empty(A.shape[:-2], dtype=torch.int32, device=A.device)
    torch.linalg.lu_factor_ex(A, out=(LU, pivots, code))


def inv(A: Tensor) -> Tensor:
    """Return ``torch.linalg.inv(A)``."""
    return _call_by_item(torch.linalg.inv, A)


def solve(A: Tensor, B: Tensor) -> Tensor:
    """Return ``torch.linalg.solve(A, B)`` for matrices A (*batch, n, n) and B (*batch, n, m)."""
    return _call_by_item(torch.linalg.solve, A, B)


def det(A: Tensor) -> Tensor:
    """Return ``torch.linalg.det(A)``."""
    return _call_by_item(torch.linalg.det, A)


def slogdet(A: Tensor) -> LogDeterminant:
    """Return ``torch.linalg.slogdet(A)``."""
    return LogDeterminant(*_call_by_item(torch.linalg.slogdet, A))


def logdet(A: Tensor) -> Tensor:
    """Return ``torch.logdet(A)``."""
    return _call_by_item(torch.logdet, A)


def _call_by_item(function: Callable[..., Any], *operands: Tensor) -> Any:
    """Return ``function(*operands)``, computed matrix by matrix where a batch could meet the fault."""
    A = operands[0]
    batch = broadcast_shapes(*(operand.shape[:-2] for operand in operands))
    items = math.prod(batch)
    if (
        items <= 1
        or A.shape[-1] <= LARGEST_UNBLOCKED_ORDER
        or A.device.type != "cpu"
        or torch.get_num_threads() == 1
    ):
        return function(*operands)
    rows = [
        operand.expand(*batch, *operand.shape[-2:]).reshape(items, *operand.shape[-2:]).unbind()
        for operand in operands
    ]
    results = [function(*matrices) for matrices in zip(*rows, strict=True)]
    if isinstance(results[0], Tensor):
        return _stack(results, batch)
    return tuple(_stack(parts, batch) for parts in zip(*results, strict=True))


def _stack(parts: Any, batch: torch.Size) -> Tensor:
    stacked = torch.stack(tuple(parts))
    return stacked.reshape(*batch, *stacked.shape[1:])
