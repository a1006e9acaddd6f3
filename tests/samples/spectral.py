"""Samples of syevd and of operators that are built on it: eigh_fn and pca."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samples.case import (
    SWEEPS,
    Flags,
    OperatorCase,
    Orders,
    Recipe,
    draw_batch,
    draw_size,
    named,
    square_recipes,
)
from samples.signs import find_decisive_signs


def symmetric_part(A: Tensor) -> Tensor:
    return 0.5 * (A + A.mT)


def fix_signs(U: Tensor) -> Tensor:
    """Rows with their first entry of nearly the largest size made positive."""
    return U * find_decisive_signs(U)


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and columns of eigenvectors, with derivatives to fourth order in every mode.

    torch.linalg.eigh has NaN where its forward mode is differentiated. Here its values are constants, and the
    derivatives are those of the perturbation series: each round of the iteration is right to one order more.
    """
    _, columns = torch.linalg.eigh(symmetric_part(A).detach())
    M = columns.mT @ symmetric_part(A) @ columns
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    C = identity.expand(M.shape)
    for _ in range(4):
        values = (M * C.mT).sum(-1)
        gaps = values.unsqueeze(-2) - diagonal.unsqueeze(-1) + identity
        C = ((M - torch.diag_embed(diagonal)) @ C / gaps) * (1 - identity) + identity
    values = (M * C.mT).sum(-1)
    C = columns @ C
    return values, C / C.square().sum(-2, keepdim=True).sqrt()


def syevd(
    A: Tensor,
    *,
    lower: bool = True,
    degeneracy: str = "mask",
    tol: float | None = None,
    k: int | None = None,
    vectors: bool = True,
) -> Any:
    """At separated eigenvalues no policy matters."""
    eigenvalues, columns = eigh(A)
    rest = 0 if k is None else A.shape[-1] - k
    U, eigenvalues = fix_signs(columns.mT)[..., rest:, :].contiguous(), eigenvalues[..., rest:].contiguous()
    return (U, eigenvalues) if vectors else eigenvalues


def _syevd_recipes() -> tuple[Recipe, ...]:
    flags = (
        {"degeneracy": "lorentz"},
        {"degeneracy": "clamp", "tol": 1e-9},
        {"degeneracy": "nan", "lower": False},
        {"degeneracy": "raise"},
        {"vectors": False},
        {"vectors": False, "k": 2},
        {"k": 3},
        {"k": 0},
        {"k": 5, "lower": False},
    )
    small = tuple(named(((5, 5),), flag) for flag in flags)
    batches = tuple(named(((3, 5, 5),), flag) for flag in flags)
    return square_recipes(lower=(True, False)) + small + batches


class Softplus:
    """softplus as a class, so that its name (and the test id) is the same in every process."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x)

    def __repr__(self) -> str:
        return "softplus"


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "inv": torch.reciprocal,
}


def eigh_fn(
    A: Tensor,
    f: str | Callable[[Tensor], Tensor],
    *,
    exponent: float | None = None,
    lower: bool = True,
    tol: float | None = None,
) -> Tensor:
    values, columns = eigh(A)
    function = f if callable(f) else _FUNCTIONS.get(f, lambda x: x**exponent)
    return columns @ (function(values).unsqueeze(-1) * columns.mT)


def _eigh_fn_recipes() -> tuple[Recipe, ...]:
    flags = (
        {"f": "log", "tol": 1e-12},
        {"f": "exp"},
        {"f": "rsqrt"},
        {"f": "inv"},
        {"f": "power", "exponent": 1.5},
        {"f": "power", "exponent": -2.0},
        {"f": Softplus()},
    )
    others = tuple(named((shape,), flag) for flag in flags for shape in ((4, 4), (3, 3, 3)))
    return square_recipes(f=("sqrt",), lower=(True, False)) + others


def pca(X: Tensor, *, k: int, degeneracy: str = "mask", tol: float | None = None) -> tuple[Tensor, ...]:
    """Variances as eigenvalues of the smaller of X^T X and X X^T."""
    mean = X.mean(-2)
    centred = X - mean.unsqueeze(-2)
    n, d = X.shape[-2:]
    degrees = max(n - 1, 1)
    values, columns = eigh((centred.mT @ centred if d <= n else centred @ centred.mT) / degrees)
    values, rows = values.flip(-1)[..., :k].contiguous(), columns.mT.flip(-2)[..., :k, :]
    components = rows if d <= n else rows @ centred / (values * degrees).sqrt().unsqueeze(-1)
    components = fix_signs(components)
    return components, values, mean, centred @ components.mT


def _pca_recipes() -> tuple[Recipe, ...]:
    flags = {"k": 2}, {"k": 3, "degeneracy": "lorentz"}, {"k": 1, "tol": 1e-10}, {"k": 0}
    shapes = (6, 4), (4, 7), (3, 6, 4), (0, 6, 4), (2, 1, 4, 6), (5, 5)
    return tuple(named((shape,), flag) for shape in shapes for flag in flags)


def _draw_pca(rng: random.Random, largest: int) -> Recipe:
    """One component (its variance has to be in range) to as many as centred rows have directions."""
    n, d = draw_size(rng, 2, largest), draw_size(rng, 1, largest)
    flags: Flags = {"k": rng.randint(1, min(n - 1, d))}
    if rng.random() < 0.3:
        flags["degeneracy"] = rng.choice(["lorentz", "clamp", "nan"])
    return named(((*draw_batch(rng, max(n, d)), n, d),), flags)


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        "syevd",
        syevd,
        _syevd_recipes(),
        ("spaced",),
        ("A",),
        condition=float,
        passes=SWEEPS,
        saved=(2,),
        orders=Orders({"lower": (True, False), "vectors": (True, False)}),
    ),
    OperatorCase(
        "linalg.eigh_fn",
        eigh_fn,
        _eigh_fn_recipes(),
        ("spaced",),
        ("A",),
        condition=lambda n: 10.0,
        passes=SWEEPS,
        saved=(2,),
    ),
    OperatorCase(
        "linalg.pca",
        pca,
        _pca_recipes(),
        ("spaced_rows",),
        ("X",),
        condition=lambda n: 10.0,
        operator_name="syevd_top",
        draw=_draw_pca,
        passes=SWEEPS,
        saved=(9,),
    ),
)
