"""Inverses, determinants and solves by LU factorisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from device import DEVICE
from tolerances import SOLVED_TWICE, of_order
from torch import Tensor

from lapgrad._torch import lu as torch_lu
from samples.case import BATCH_PAIRS, OperatorCase, Orders, Recipe, all_flags, named, square_recipes


class _LogDeterminant(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


def _sign_and_diagonal(A: Tensor) -> tuple[Tensor, Tensor]:
    """A = Q R: det Q, and the diagonal of R.

    torch.linalg.det and slogdet do not serve as references: derivatives of their forward mode derivatives
    leave out those of the factors. LAPACK computes them for every device: cuSOLVER's are less exact.
    """
    Q, R = torch.linalg.qr(A.cpu())
    sign, diagonal = torch_lu.det(Q.detach()).sign(), R.diagonal(dim1=-2, dim2=-1)
    return sign.to(A.device), diagonal.to(A.device)


def slogdet(A: Tensor) -> _LogDeterminant:
    sign, diagonal = _sign_and_diagonal(A)
    return _LogDeterminant(sign * diagonal.detach().sign().prod(-1), diagonal.abs().log().sum(-1))


def det(A: Tensor) -> Tensor:
    sign, diagonal = _sign_and_diagonal(A)
    return sign * diagonal.prod(-1)


def inverse(A: Tensor) -> Tensor:
    return torch_lu.inv(A)


def gesv(A: Tensor, B: Tensor, *, transpose: bool = False) -> Tensor:
    """By the inverse: derivatives of torch.linalg.solve in forward mode leave out those of its factors."""
    return torch_lu.inv(A.mT if transpose else A) @ B


def _solve_recipes() -> tuple[Recipe, ...]:
    """Return a matrix of order n and right-hand sides, with all kinds of broadcasting."""
    recipes = []
    for flag in all_flags(transpose=(False, True)):
        recipes += [named(((n, n), (n, m)), flag) for n, m in ((5, 3), (3, 5), (1, 1), (0, 3), (3, 0))]
        recipes += [named(((*one, 4, 4), (*other, 4, 3)), flag) for one, other in BATCH_PAIRS]
    return tuple(recipes)


#: Counted twice, for the operator and for its reference. cuSOLVER's elimination rounds more than LAPACK's: 97
#: units are seen at n = 257.
_BOTH = 2.0 if DEVICE.type == "cpu" else 3.0


def _of_pivots(n: int) -> float:
    """The logarithm of a determinant errs by the sum of the relative errors of n pivots.

    Pivot k is what is left of a sum of k products of the order of 1, each rounded with a standard deviation
    of 0.3 eps: sqrt(k) 0.3 eps. The sum over all pivots has one of 0.3 sqrt(1 + ... + n) eps, or 0.2 n eps.
    50 units are seen at n = 257, with torch's elimination as with lapgrad's; three deviations are 0.6 n.
    """
    return _BOTH + 0.6 * n / of_order(n)


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        "inverse",
        inverse,
        square_recipes(),
        ("regular",),
        ("A",),
        overwrites=0,
        saved=(1,),
        orders=Orders({}),
    ),
    OperatorCase(
        "det",
        det,
        square_recipes(),
        ("regular",),
        ("A",),
        condition=_of_pivots,
        saved=(3,),
        orders=Orders({}),
    ),
    OperatorCase(
        "slogdet",
        slogdet,
        square_recipes(),
        ("regular",),
        ("A",),
        condition=_of_pivots,
        saved=(3,),
        orders=Orders({}),
    ),
    OperatorCase(
        "gesv",
        gesv,
        _solve_recipes(),
        ("regular", "general"),
        ("A", "B"),
        condition=lambda n: SOLVED_TWICE,
        saved=(4, 3),
        orders=Orders({"transpose": (False, True)}, lambda n, m, flags: ((n, n), (n, m))),
    ),
)
