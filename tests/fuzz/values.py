"""Values of operands: well and badly conditioned, graded; and changes of the form of rounding errors."""

from __future__ import annotations

import random

import torch
from samples import OperatorCase, Recipe
from sized import operand
from torch import Tensor

#: Kinds that can be made badly conditioned and keep what makes them that kind.
_MAY_BE_ILL_CONDITIONED = ("spd", "regular")
#: Kinds whose rows may differ in size by many orders of magnitude.
_MAY_BE_GRADED = ("spd", "triangular", "general")


def draw_values(
    case: OperatorCase, recipe: Recipe, rng: random.Random, dtype: torch.dtype, may_grade: bool
) -> tuple[list[Tensor], str]:
    """Return operands in float64 that ``dtype`` represents exactly, and a word for how they were drawn."""
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    kinds = case.kinds
    values = [operand(kind, shape, generator).cpu() for kind, shape in zip(kinds, recipe.shapes, strict=True)]
    special = rng.choice(["", "", "ill-conditioned", "graded"])
    positions: list[int] = []
    if special == "ill-conditioned":
        positions = [i for i, kind in enumerate(kinds) if kind in _MAY_BE_ILL_CONDITIONED]
        condition = 10 ** rng.uniform(0, 4 if dtype is torch.float64 else 2)
        for i in positions:
            values[i] = _shrink_one_direction(values[i], condition, kinds[i] == "spd", generator)
    elif special == "graded" and may_grade and case.draw is None:
        # One of them: where two meet, only entries that both make large are well determined.
        positions = [i for i, kind in enumerate(kinds) if kind in _MAY_BE_GRADED and values[i].dim() > 1]
        positions = positions and [rng.choice(positions)]
        steps = rng.choice([-1, 1]) * (40 if dtype is torch.float64 else 10)
        for i in positions:
            # Factors of D A D are D L and R D.
            upper = kinds[i] == "triangular" and not recipe.flags.get("lower", True)
            sides = "both" if kinds[i] == "spd" else "columns" if upper else "rows"
            values[i] = _grade(values[i], steps, sides, generator)
    return [value.to(dtype).double() for value in values], special if positions else ""


def _shrink_one_direction(A: Tensor, condition: float, symmetric: bool, generator: torch.Generator) -> Tensor:
    """A M, or M A M, with M = I - (1 - 1/condition) u u^T and a unit vector u."""
    n = A.shape[-1]
    u = torch.randn(n, 1, dtype=A.dtype, generator=generator)
    u = u / u.norm().clamp_min(1e-300)
    factor = condition**-0.5 if symmetric else 1 / condition
    M = torch.eye(n, dtype=A.dtype) - (1 - factor) * u @ u.mT
    if not symmetric:
        return A @ M
    A = M @ A @ M
    return 0.5 * (A + A.mT)


def _grade(A: Tensor, largest: int, sides: str, generator: torch.Generator) -> Tensor:
    """D A, A D or D A D, with powers of two on the diagonal D.

    All are at least 1, or all at most 1: sums of logarithms then have terms of one sign, and an error that is
    relative to the result is a fair demand.
    """
    size = A.shape[-1] if sides == "columns" else A.shape[-2]
    D = torch.exp2((largest * torch.rand(size, generator=generator, dtype=A.dtype)).round())
    if sides != "columns":
        A = D[:, None] * A
    return A if sides == "rows" else A * D


def perturb(kind: str, A: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """``A`` with a random change of the form that the backward errors of good algorithms have.

    Relative to each entry for products and substitutions; to the root of the two diagonal entries for
    Cholesky factors, where D A D is as good as A; to the largest of the row for LQ factors; else to the
    largest of the matrix.
    """
    if not A.numel():
        return A
    noise = size * torch.randn(A.shape, generator=generator, dtype=A.dtype)
    if kind in ("general", "contracting", "triangular"):
        return A + noise * A.abs()
    if kind in ("spd", "falling"):
        root = A.diagonal(dim1=-2, dim2=-1).abs().sqrt()
        noise = noise * root.unsqueeze(-1) * root.unsqueeze(-2)
        return A + 0.5**0.5 * (noise + noise.mT)
    if kind == "full_rank":
        return A + noise * A.abs().amax(-1, keepdim=True)
    noise = noise * A.abs().amax((-2, -1), keepdim=True)
    return A + (0.5**0.5 * (noise + noise.mT) if kind == "spaced" else noise)
