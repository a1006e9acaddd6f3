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
    "potrf": {"lower": (True, False)},
    "potrf_ex": {"lower": (True, False)},
    "trsm": {"transpose": (False, True), "rightside": (False, True), "lower": (True, False)},
    "trmm": {"transpose": (False, True), "rightside": (False, True), "lower": (True, False)},
    "gemmt": {"transpose_a": (False, True), "transpose_b": (False, True), "lower": (True, False)},
    "syrk": {"transpose": (False, True)},
    "copyltu": {"lower": (True, False)},
    "extracttrian": {"lower": (True, False), "offset": (0, 1, -1)},
    "sumlogdiag": {},
    "potri": {"lower": (True, False)},
    "linalg.cho_solve": {"lower": (True, False)},
    "linalg.logdet_psd": {"lower": (True, False)},
    "linalg.solve_psd": {"lower": (True, False)},
    "linalg.inverse_psd": {"lower": (True, False)},
    "fused.mvn_nll": {"lower": (True, False)},
    "gesvd": {"vectors": (True, False)},
    "linalg.lstsq": {"rcond": (None, 1e-6)},
    "gelqf": {"mode": ("reduced", "l"), "positive": (False, True)},
    "inverse": {},
    "det": {},
    "slogdet": {},
    "syevd": {"lower": (True, False), "vectors": (True, False)},
}


def all_flags(name: str) -> list[Flags]:
    """Every combination of the operator's flags."""
    choices = FLAGS[name]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def shapes(name: str, n: int, other: int, flags: Flags) -> tuple[Shape, ...]:
    """Shapes of the operands for matrices of order n; ``other`` is the other side of those not square."""
    if name in ("trsm", "trmm"):
        return (n, n), (other, n) if flags.get("rightside") else (n, other)
    if name in ("linalg.cho_solve", "linalg.solve_psd", "fused.mvn_nll"):
        return (n, n), (n, other)
    if name == "gemmt":
        wide, tall = (other, n), (n, other)
        return wide if flags.get("transpose_a") else tall, tall if flags.get("transpose_b") else wide
    if name == "gesvd":
        return ((n, other),)
    if name == "syrk":
        return ((other, n) if flags.get("transpose") else (n, other),)
    if name == "gelqf":
        return ((n, other),)
    if name == "linalg.lstsq":
        return (n, other), (n, 3)
    return ((n, n),)


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
    kinds = OPERATORS[name].kinds
    args = tuple(
        operand(kind, (*batch, *shape), generator).to(device=DEVICE, dtype=dtype)
        for kind, shape in zip(kinds, shapes(name, n, other, flags), strict=True)
    )
    return Sample(args, flags, f"{name} {n} {batch} {flags}")


def operand(kind: str, shape: Shape, generator: torch.Generator) -> Tensor:
    X = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "general":
        return X
    if kind in ("separated", "spaced", "spaced_rows", "contracting"):
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
