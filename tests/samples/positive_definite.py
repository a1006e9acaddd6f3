"""The inverse from a Cholesky factor, and functions of positive definite matrices."""

from __future__ import annotations

import math

import torch
from tolerances import SOLVED_TWICE
from torch import Tensor

from samples.case import BATCH_PAIRS, OperatorCase, Orders, Recipe, all_flags, named, square_recipes


def _solve_recipes() -> tuple[Recipe, ...]:
    """Return a matrix of order n and right-hand sides, with all kinds of broadcasting."""
    flags = list(all_flags(lower=(True, False)))
    recipes = []
    for n, m in ((5, 3), (3, 5), (1, 1), (0, 3), (3, 0)):
        recipes += [named(((n, n), (n, m)), flag) for flag in flags]
    for batch_a, batch_b in (*BATCH_PAIRS, ((2, 1), (2, 3)), ((2, 1, 2), (3, 1))):
        recipes += [named(((*batch_a, 4, 4), (*batch_b, 4, 3)), flag) for flag in flags]
    return tuple(recipes)


def _factor(A: Tensor, lower: bool) -> Tensor:
    """Return the lower factor of the named triangle."""
    L = torch.linalg.cholesky(A, upper=not lower)
    return L if lower else L.mT


def potri(L: Tensor, *, lower: bool = True) -> Tensor:
    L = L.tril() if lower else L.triu().mT
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    inverse = torch.linalg.solve_triangular(L, identity, upper=False)
    return inverse.mT @ inverse


def cho_solve(L: Tensor, B: Tensor, *, lower: bool = True) -> Tensor:
    L = L.tril() if lower else L.triu().mT
    half = torch.linalg.solve_triangular(L, B, upper=False)
    return torch.linalg.solve_triangular(L.mT, half, upper=True)


def logdet_psd(A: Tensor, *, lower: bool = True) -> Tensor:
    return 2.0 * _factor(A, lower).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def solve_psd(A: Tensor, B: Tensor, *, lower: bool = True) -> Tensor:
    return cho_solve(_factor(A, lower), B)


def inverse_psd(A: Tensor, *, lower: bool = True) -> Tensor:
    return potri(_factor(A, lower))


def mvn_nll(A: Tensor, Y: Tensor, *, lower: bool = True) -> Tensor:
    L = _factor(A, lower)
    n, k = Y.shape[-2:]
    W = torch.linalg.solve_triangular(L, Y, upper=False)
    constant = 0.5 * n * k * math.log(2.0 * math.pi)
    return 0.5 * W.square().sum((-2, -1)) + k * L.diagonal(dim1=-2, dim2=-1).log().sum(-1) + constant


def pstrf(
    A: Tensor, *, rank: int | None = None, tol: float | None = None, lower: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """One pivot after the other, each subtracting its product from the whole matrix."""
    n = A.shape[-1]
    named = A.tril() + A.tril(-1).mT if lower else A.triu() + A.triu(1).mT
    # Reads the named triangle, and gives a symmetric gradient.
    middle = 0.5 * (A + A.mT)
    left = named.detach() + (middle - middle.detach())
    most = n if rank is None else rank
    order = torch.arange(n, device=A.device).expand(A.shape[:-1])
    found = torch.zeros(A.shape[:-2], dtype=torch.int64, device=A.device)
    columns = []
    unit = torch.finfo(A.dtype).eps / 2
    for k in range(most):
        diagonal = left.diagonal(dim1=-2, dim2=-1).gather(-1, order)
        if k == 0:
            largest = diagonal.detach().amax(-1, keepdim=True)
            least = n * unit * largest if tol is None else torch.full_like(largest, tol)
        place = diagonal[..., k:].argmax(-1, keepdim=True) + k
        is_pivot = diagonal.gather(-1, place) > least
        place = torch.where(is_pivot, place, k)
        chosen = order.gather(-1, place)
        order = order.scatter(-1, place, order[..., k : k + 1])
        order = torch.cat((order[..., :k], chosen, order[..., k + 1 :]), -1)
        column = torch.take_along_dim(left, chosen.unsqueeze(-2), -1).squeeze(-1)
        root = torch.where(is_pivot, column.gather(-1, chosen), 1.0).sqrt()
        column = torch.where(is_pivot, column / root, 0.0)
        left = left - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
        found = found + is_pivot.squeeze(-1)
    L = torch.stack(columns, -1) if columns else left[..., :0]
    L = torch.take_along_dim(L, order.unsqueeze(-1), -2).tril()
    return L if lower else L.mT, order.clone(), found


def _pivoted_recipes() -> tuple[Recipe, ...]:
    """All columns, some of them, and a tolerance that ends the factorisation: pivots fall from 2 to 1.

    No ratio of small integers is near that tolerance (2 less the golden ratio), so that no pivot is.
    """
    recipes = list(square_recipes(lower=(True, False)))
    for lower in (True, False):
        for shape, rank in (((5, 5), 3), ((3, 5, 5), 2), ((5, 5), 0), ((20, 20), 2), ((2, 1, 3, 3), 3)):
            recipes.append(named((shape,), {"rank": rank, "lower": lower}))
        recipes += [named((shape,), {"tol": 1.382, "lower": lower}) for shape in ((5, 5), (3, 5, 5))]
        recipes.append(named(((6, 6),), {"rank": 5, "tol": 1.382, "lower": lower}))
    return tuple(recipes)


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        "pstrf",
        pstrf,
        _pivoted_recipes(),
        ("falling",),
        ("A",),
        saved=(3,),
        orders=Orders({"lower": (True, False), "rank": (None, 1)}),
    ),
    OperatorCase(
        "potri",
        potri,
        square_recipes(lower=(True, False)),
        ("triangular",),
        ("L",),
        overwrites=0,
        saved=(1,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "linalg.cho_solve",
        cho_solve,
        _solve_recipes(),
        ("triangular", "general"),
        ("L", "B"),
        saved=(2, 1),
        orders=Orders({"lower": (True, False)}, lambda n, m, flags: ((n, n), (n, m))),
    ),
    OperatorCase(
        "linalg.logdet_psd",
        logdet_psd,
        square_recipes(lower=(True, False)),
        ("spd",),
        ("A",),
        overwrites=0,
        leaves_result=False,
        saved=(1,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "linalg.solve_psd",
        solve_psd,
        _solve_recipes(),
        ("spd", "general"),
        ("A", "B"),
        condition=lambda n: SOLVED_TWICE,
        saved=(2, 1),
        orders=Orders({"lower": (True, False)}, lambda n, m, flags: ((n, n), (n, m))),
    ),
    OperatorCase(
        "linalg.inverse_psd",
        inverse_psd,
        square_recipes(lower=(True, False)),
        ("spd",),
        ("A",),
        overwrites=0,
        condition=lambda n: SOLVED_TWICE,
        saved=(1,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "fused.mvn_nll",
        mvn_nll,
        _solve_recipes(),
        ("spd", "general"),
        ("A", "Y"),
        overwrites=0,
        leaves_result=False,
        condition=lambda n: SOLVED_TWICE,
        saved=(2, 2),
        orders=Orders({"lower": (True, False)}, lambda n, m, flags: ((n, n), (n, m))),
    ),
)
