"""LQ factorisation and least squares."""

from __future__ import annotations

import torch
from torch import Tensor

from samples.case import OperatorCase, Shape, all_flags, named

#: Wide first, then square and tall; empty ones; batches.
SHAPES: tuple[Shape, ...] = (
    (3, 5), (4, 4), (5, 3), (1, 1), (1, 4), (4, 1), (0, 3), (3, 0), (0, 0),
    (3, 2, 4), (3, 4, 2), (0, 3, 2), (2, 1, 3, 3), (3, 0, 2),
)  # fmt: skip


def gelqf(A: Tensor, *, mode: str = "reduced", positive: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """Rows below the first min(m, n) are multiplied by Q^T: torch has no gradient for a tall A."""
    rank = min(A.shape[-2:])
    orthogonal, triangle = torch.linalg.qr(A[..., :rank, :].mT)
    Q, L = orthogonal.mT, torch.cat([triangle.mT, A[..., rank:, :] @ orthogonal], -2)
    if positive:
        signs = torch.where(L.detach().diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(A.dtype)
        Q, L = signs[..., :, None] * Q, L * signs[..., None, :]
    return L if mode == "l" else (Q, L)


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
    ),
)
