"""Samples of any order, for properties that depend on it: algorithms change from leaf to block to BLAS."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from device import DEVICE
from samples import MAKERS, OPERATORS, Flags, Sample, Shape
from torch import Tensor

#: The operators that run on the compiled core, with all their flags.
FLAGS: dict[str, dict[str, tuple[Any, ...]]] = {
    name: case.orders.flags for name, case in OPERATORS.items() if case.orders is not None
}


def list_flag_choices(name: str) -> list[Flags]:
    """Every combination of the operator's flags."""
    choices = FLAGS[name]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def sample(
    name: str,
    n: int,
    flags: Flags,
    *,
    other: int | None = None,
    batch: Shape = (),
    dtype: torch.dtype = torch.float64,
) -> Sample:
    """Operands of order n that are well conditioned at every order; the same numbers on every call."""
    other = n if other is None else other
    generator = torch.Generator().manual_seed(n)
    case = OPERATORS[name]
    assert case.orders is not None
    args = tuple(
        operand(kind, (*batch, *shape), generator).to(device=DEVICE, dtype=dtype)
        for kind, shape in zip(case.kinds, case.orders.shapes(n, other, flags), strict=True)
    )
    return Sample(args, flags, f"{name} {n} {batch} {flags}")


def operand(kind: str, shape: Shape, generator: torch.Generator) -> Tensor:
    X = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "general":
        return X
    if kind in ("separated", "spaced", "spaced_rows", "contracting", "falling"):
        return MAKERS[kind](shape, generator)
    n = shape[-1]
    if kind == "full_rank":
        return 0.5 / math.sqrt(max(*shape[-2:], 1)) * X + torch.eye(*shape[-2:], dtype=torch.float64)
    identity = torch.eye(n, dtype=torch.float64)
    if kind == "spd":
        return X @ X.mT / max(n, 1) + 0.5 * identity
    # The inverse of a random triangle grows with 2^n; with entries of 1/sqrt(n) it stays of the order of 1.
    X = 0.5 / math.sqrt(max(n, 1)) * X + identity
    return X.roll(1, -2) if kind == "regular" else X
