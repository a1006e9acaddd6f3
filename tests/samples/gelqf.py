"""LQ factorisation and least squares."""

from __future__ import annotations

import itertools

import torch
from tolerances import GRADIENT_OF_LQ, SOLVED_TWICE
from torch import Tensor

from lapgrad._torch import lu as torch_lu
from samples.case import BATCH_PAIRS, OperatorCase, Orders, Recipe, Shape, all_flags, named

#: Wide first, then square and tall; empty ones; batches.
SHAPES: tuple[Shape, ...] = (
    (3, 5), (4, 4), (5, 3), (1, 1), (1, 4), (4, 1), (0, 3), (3, 0), (0, 0),
    (3, 2, 4), (3, 4, 2), (0, 3, 2), (2, 1, 3, 3), (3, 0, 2),
)  # fmt: skip


def gelqf(A: Tensor, *, mode: str = "reduced", positive: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """LQ of the first min(m, n) rows; the others of L are A Q^T, because torch has no gradient for a tall A.

    LAPACK computes it for every device.
    """
    rank = min(A.shape[-2:])
    orthogonal, triangle = (factor.to(A.device) for factor in torch.linalg.qr(A[..., :rank, :].mT.cpu()))
    Q, L = orthogonal.mT, torch.cat([triangle.mT, A[..., rank:, :] @ orthogonal], -2)
    if positive or A.is_cuda:  # on CUDA either way
        signs = torch.where(L.detach().diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(A.dtype)
        Q, L = signs[..., :, None] * Q, L * signs[..., None, :]
    return L if mode == "l" else (Q, L)


def lstsq(A: Tensor, B: Tensor, *, rcond: float | None = None) -> Tensor:
    """By the normal equations, and again for the residual: their errors grow as the square of the condition.

    Not with torch.linalg.solve: its second derivatives in forward mode are wrong (seen with torch 2.13).
    """
    is_wide = A.shape[-2] <= A.shape[-1]
    inverse = torch_lu.inv(A @ A.mT if is_wide else A.mT @ A)

    def solve(R: Tensor) -> Tensor:
        return A.mT @ (inverse @ R) if is_wide else inverse @ (A.mT @ R)

    X = solve(B)
    return X + solve(B - A @ X)


def _lstsq_recipes() -> tuple[Recipe, ...]:
    sizes = (
        (3, 5, 2),
        (5, 3, 2),
        (4, 4, 3),
        (1, 1, 1),
        (2, 4, 1),
        (0, 3, 2),
        (3, 0, 2),
        (3, 2, 0),
        (2, 3, 0),
    )
    recipes = [named(((m, n), (m, k)), {}) for m, n, k in sizes]
    recipes += [
        named(((*batch_a, m, n), (*batch_b, m, 2)), {"rcond": rcond})
        for (batch_a, batch_b), (m, n) in itertools.product(BATCH_PAIRS, ((2, 3), (3, 2)))
        for rcond in ((None, 1e-3) if batch_a == (3,) else (None,))
    ]
    return tuple(recipes)


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        "gelqf",
        gelqf,
        tuple(
            named((shape,), flags)
            for shape in SHAPES
            for flags in all_flags(mode=("reduced", "l"), positive=(False, True))
        ),
        ("full_rank",),
        ("A",),
        condition=lambda n: GRADIENT_OF_LQ,
        saved=(2,),
        orders=Orders({"mode": ("reduced", "l"), "positive": (False, True)}, lambda n, m, flags: ((n, m),)),
    ),
    OperatorCase(
        "linalg.lstsq",
        lstsq,
        _lstsq_recipes(),
        ("full_rank", "general"),
        ("A", "B"),
        condition=lambda n: SOLVED_TWICE,
        saved=(4, 2),
        orders=Orders({"rcond": (None, 1e-06)}, lambda n, m, flags: ((n, m), (n, 3))),
    ),
)
