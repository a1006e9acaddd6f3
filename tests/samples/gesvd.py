"""The singular value decomposition."""

from __future__ import annotations

import torch
from torch import Tensor

from samples.case import SWEEPS, OperatorCase, Orders, Recipe, Shape, named
from samples.signs import find_decisive_signs


def _recipes() -> tuple[Recipe, ...]:
    shapes: tuple[Shape, ...] = (
        (4, 4), (3, 5), (5, 3), (1, 1), (1, 4), (4, 1), (0, 0), (0, 3), (3, 0),
        (3, 4, 4), (3, 2, 4), (2, 4, 2), (0, 3, 4), (2, 1, 3, 3), (3, 0, 0),
    )  # fmt: skip
    plain = [named((shape,), {}) for shape in shapes]
    flagged = [
        named((shape,), flags)
        for flags in (
            {"rank": 2},
            {"rank": 2, "vectors": False},
            {"vectors": False},
            {"degeneracy": "lorentz", "tol": 1e-9},
            {"degeneracy": "clamp"},
            {"degeneracy": "nan"},
            {"degeneracy": "raise", "tol": 0.0},
        )
        for shape in ((4, 4), (3, 5), (2, 4, 3))
    ]
    return (*plain, *flagged)


def gesvd(
    A: Tensor,
    *,
    degeneracy: str = "mask",
    tol: float | None = None,
    rank: int | None = None,
    vectors: bool = True,
) -> tuple[Tensor, ...] | Tensor:
    """torch's decomposition with rows of vectors, and the sign of the leading entry of each row of U."""
    columns, S, V = torch.linalg.svd(A, full_matrices=False)
    U = columns.mT
    signs = find_decisive_signs(U)
    U, V = signs * U, signs * V
    r = S.shape[-1] if rank is None else rank
    return (U[..., :r, :], S[..., :r], V[..., :r, :]) if vectors else S[..., :r]


def _of_vectors(n: int) -> float:
    """The largest singular value over the gap, n / 1, in the operator and in its reference.

    A stable decomposition is exact for a matrix that differs by a few eps |A|, and vectors turn by that over
    the gap. LAPACK serves the reference and, for large matrices, the operator. It errs by more than kernels
    for small ones: against 30 digits by up to 228 units at n = 24, where Jacobi's method errs by 12.
    """
    return 2.0 * n


CASES = (
    OperatorCase(
        "gesvd",
        gesvd,
        _recipes(),
        ("separated",),
        ("A",),
        condition=_of_vectors,
        passes=SWEEPS,
        saved=(3,),
        orders=Orders({"vectors": (True, False)}, lambda n, m, flags: ((n, m),)),
    ),
)
