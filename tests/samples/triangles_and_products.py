"""Cholesky, triangular solves and products, products, and the operators that move entries."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import Tensor

from samples.case import (
    BATCH_PAIRS,
    Flags,
    OperatorCase,
    Orders,
    Recipe,
    Shape,
    all_flags,
    draw_batch,
    draw_size,
    named,
    square_recipes,
)


def _triangular_recipes() -> tuple[Recipe, ...]:
    recipes = []
    flags = list(all_flags(transpose=(False, True), rightside=(False, True), lower=(True, False)))
    for n, m in ((5, 3), (3, 5), (1, 1), (0, 3), (3, 0)):
        for flag in flags if n == 5 else flags[::3]:
            recipes.append(named(((n, n), (m, n) if flag["rightside"] else (n, m)), flag))
    for (batch_l, batch_a), flag in itertools.product(BATCH_PAIRS, flags[::3]):
        right = (3, 4) if flag["rightside"] else (4, 3)
        recipes.append(named(((*batch_l, 4, 4), (*batch_a, *right)), flag))
    for rightside in (False, True):
        scaled = {"alpha": -0.7, "rightside": rightside}
        recipes.append(named(((4, 4), (4, 4)), scaled))
        recipes.append(named(((4, 4), (2, 4, 4)), scaled))
        recipes.append(named(((2, 4, 4), (4, 4)), scaled))
    return tuple(recipes)


def _product_recipes(third: bool, square: bool, **choices: tuple[Any, ...]) -> tuple[Recipe, ...]:
    """Products ta(A) tb(B) of m x k and k x n, with the shape of the result as a third operand if wanted."""
    recipes = []
    flags = list(all_flags(transpose_a=(False, True), transpose_b=(False, True), **choices))

    def add(batches: tuple[Shape, ...], sizes: Shape, flag: Flags) -> None:
        m, n, k = sizes
        a = (k, m) if flag["transpose_a"] else (m, k)
        b = (n, k) if flag["transpose_b"] else (k, n)
        shapes: tuple[Shape, ...] = ((*batches[0], *a), (*batches[1], *b))
        if third:
            shapes = (*shapes, (*batches[2], m, n))
        recipes.append(named(shapes, flag))

    all_sizes = ((4, 4, 3), (2, 2, 5), (1, 1, 1), (0, 0, 3), (3, 3, 0))
    for m, n, k in all_sizes if square else (*all_sizes, (4, 2, 3), (2, 5, 3)):
        for flag in flags if m == 4 else flags[::7]:
            add(((), (), ()), (m, n, k), flag)
    for (batch_a, batch_b), flag in itertools.product(BATCH_PAIRS, flags[::7]):
        add((batch_a, batch_b, ()), (3, 3, 2), flag)
        if batch_a != batch_b:
            add((batch_b, batch_a, batch_b), (3, 3, 2), flag)
    return tuple(recipes)


def _rectangular_recipes() -> tuple[Recipe, ...]:
    shapes: tuple[Shape, ...] = (
        (4, 3), (3, 5), (0, 3), (3, 0), (1, 1), (3, 5, 2), (0, 3, 2), (2, 1, 3, 4)
    )  # fmt: skip
    flags = all_flags(transpose=(False, True), alpha=(1.0, -0.7))
    return tuple(named((shape,), flag) for flag, shape in itertools.product(flags, shapes))


def _offset_recipes(lengths: bool) -> tuple[Recipe, ...]:
    """Diagonals of square matrices; with ``lengths`` the operand is the diagonal itself."""
    recipes = []
    for offset, batch in itertools.product((0, 1, -1, 2, -3), ((), (3,), (0,), (2, 1))):
        shape = (*batch, 5 - abs(offset)) if lengths else (*batch, 5, 5)
        recipes.append(named((shape,), {"offset": offset}))
    for n, offset in ((0, 0), (1, 0), (1, 1), (3, -3)):
        recipes.append(named(((n - abs(offset),) if lengths else (n, n),), {"offset": offset}))
    return tuple(recipes)


def _triangle_recipes(packed: bool) -> tuple[Recipe, ...]:
    """Triangles of square matrices; with ``packed`` the operand is the packed vector itself."""
    recipes = []
    for offset, lower, batch in itertools.product((0, 1, -2), (True, False), ((), (3,), (0,), (2, 1))):
        k = 4 - abs(offset)
        shape = (*batch, k * (k + 1) // 2) if packed else (*batch, 4, 4)
        recipes.append(named((shape,), {"offset": offset, "lower": lower}))
    for n, offset in ((0, 0), (1, 0), (1, 1), (2, -2)):
        k = n - abs(offset)
        recipes.append(named(((k * (k + 1) // 2,) if packed else (n, n),), {"offset": offset}))
    return tuple(recipes)


def _t(A: Tensor, transpose: bool) -> Tensor:
    return A.mT if transpose else A


def _tri(A: Tensor, lower: bool) -> Tensor:
    return A.tril() if lower else A.triu()


def potrf(A: Tensor, *, lower: bool = True) -> Tensor:
    return torch.linalg.cholesky(A, upper=not lower)


def potrf_ex(A: Tensor, *, lower: bool = True) -> tuple[Tensor, Tensor]:
    """An item that fails is replaced by a constant, the identity, before it is factorised."""
    info = torch.linalg.cholesky_ex(A, upper=not lower).info
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return potrf(torch.where((info == 0)[..., None, None], A, identity), lower=lower), info


def trsm(
    L: Tensor,
    A: Tensor,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
) -> Tensor:
    triangle = _t(_tri(L, lower), transpose)
    return alpha * torch.linalg.solve_triangular(triangle, A, upper=lower == transpose, left=not rightside)


def trmm(
    L: Tensor,
    A: Tensor,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
) -> Tensor:
    triangle = _t(_tri(L, lower), transpose)
    return alpha * (A @ triangle if rightside else triangle @ A)


def gemmt(
    A: Tensor,
    B: Tensor,
    *,
    lower: bool = True,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    return alpha * _tri(_t(A, transpose_a) @ _t(B, transpose_b), lower)


def gemm2(
    A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0
) -> Tensor:
    return alpha * (_t(A, transpose_a) @ _t(B, transpose_b))


def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    return alpha * (_t(A, transpose_a) @ _t(B, transpose_b)) + beta * C


def syrk(A: Tensor, *, transpose: bool = False, alpha: float = 1.0) -> Tensor:
    A = _t(A, transpose)
    return alpha * (A @ A.mT)


def copyltu(A: Tensor, *, lower: bool = True) -> Tensor:
    A = _t(A, not lower)
    return A.tril() + A.tril(-1).mT


def sumlogdiag(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def extractdiag(A: Tensor, *, offset: int = 0) -> Tensor:
    return A.diagonal(offset, -2, -1).clone()


def makediag(d: Tensor, *, offset: int = 0) -> Tensor:
    return torch.diag_embed(d, offset)


def packed_places(n: int, offset: int, lower: bool) -> tuple[list[int], list[int]]:
    """Rows and columns in packing order, entry by entry as the documentation says it."""
    if offset > 0 or (offset == 0 and not lower):
        places = [(row, column) for column in range(n) for row in range(n) if column - row >= offset]
    else:
        places = [(row, column) for row in range(n) for column in range(n) if row - column >= -offset]
    return [row for row, _ in places], [column for _, column in places]


def extracttrian(A: Tensor, *, offset: int = 0, lower: bool = True) -> Tensor:
    rows, columns = packed_places(A.shape[-1], offset, lower)
    return A[..., rows, columns]


def maketrian(v: Tensor, *, offset: int = 0, lower: bool = True) -> Tensor:
    k = next(k for k in itertools.count() if k * (k + 1) // 2 == v.shape[-1])
    n = k + abs(offset)
    rows, columns = packed_places(n, offset, lower)
    flat = v.new_zeros((*v.shape[:-1], n * n))
    places = torch.tensor(
        [row * n + column for row, column in zip(rows, columns, strict=True)], dtype=torch.long
    )
    return flat.index_copy(-1, places.to(v.device), v).unflatten(-1, (n, n))


def _draw_packed(rng: random.Random, largest: int) -> Recipe:
    """Vectors that are triangles of order k."""
    k = draw_size(rng, 1, largest)
    flags = {"offset": rng.randint(-3, 3), "lower": rng.random() < 0.5}
    return named(((*draw_batch(rng, k), k * (k + 1) // 2),), flags)


def _shapes_of_factors(n: int, m: int, flags: Flags) -> tuple[Shape, ...]:
    """Factors of a product of order n with m terms."""
    wide, tall = (m, n), (n, m)
    return wide if flags.get("transpose_a") else tall, tall if flags.get("transpose_b") else wide


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        "potrf",
        potrf,
        square_recipes(lower=(True, False)),
        ("spd",),
        ("A",),
        overwrites=0,
        saved=(1,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "potrf_ex",
        potrf_ex,
        square_recipes(lower=(True, False)),
        ("spd",),
        ("A",),
        overwrites=0,
        saved=(2,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "trsm",
        trsm,
        _triangular_recipes(),
        ("triangular", "general"),
        ("L", "A"),
        overwrites=1,
        saved=(2, 1),
        orders=Orders(
            {"transpose": (False, True), "rightside": (False, True), "lower": (True, False)},
            lambda n, m, flags: ((n, n), (m, n) if flags.get("rightside") else (n, m)),
        ),
    ),
    OperatorCase(
        "trmm",
        trmm,
        _triangular_recipes(),
        ("triangular", "general"),
        ("L", "A"),
        overwrites=1,
        saved=(1, 1),
        orders=Orders(
            {"transpose": (False, True), "rightside": (False, True), "lower": (True, False)},
            lambda n, m, flags: ((n, n), (m, n) if flags.get("rightside") else (n, m)),
        ),
    ),
    OperatorCase(
        "gemmt",
        gemmt,
        _product_recipes(third=False, square=True, lower=(True, False), alpha=(1.0, -0.7)),
        ("general", "general"),
        ("A", "B"),
        saved=(1, 1),
        orders=Orders(
            {"transpose_a": (False, True), "transpose_b": (False, True), "lower": (True, False)},
            _shapes_of_factors,
        ),
    ),
    OperatorCase(
        "gemm2",
        gemm2,
        _product_recipes(third=False, square=False, alpha=(1.0, -0.7)),
        ("general", "general"),
        ("A", "B"),
        saved=(1, 1),
    ),
    OperatorCase(
        "gemm",
        gemm,
        _product_recipes(third=True, square=False, alpha=(1.0, -0.7), beta=(1.0, 0.4)),
        ("general", "general", "general"),
        ("A", "B", "C"),
        overwrites=2,
        saved=(1, 1, 0),
    ),
    OperatorCase(
        "syrk",
        syrk,
        _rectangular_recipes(),
        ("general",),
        ("A",),
        saved=(1,),
        orders=Orders(
            {"transpose": (False, True)}, lambda n, m, flags: ((m, n) if flags.get("transpose") else (n, m),)
        ),
    ),
    OperatorCase(
        "copyltu",
        copyltu,
        square_recipes(lower=(True, False)),
        ("general",),
        ("A",),
        overwrites=0,
        saved=(0,),
        orders=Orders({"lower": (True, False)}),
    ),
    OperatorCase(
        "sumlogdiag", sumlogdiag, square_recipes(), ("triangular",), ("A",), saved=(1,), orders=Orders({})
    ),
    OperatorCase(
        "extractdiag", extractdiag, _offset_recipes(lengths=False), ("general",), ("A",), saved=(0,)
    ),
    OperatorCase("makediag", makediag, _offset_recipes(lengths=True), ("general",), ("d",), saved=(0,)),
    OperatorCase(
        "extracttrian",
        extracttrian,
        _triangle_recipes(packed=False),
        ("general",),
        ("A",),
        saved=(0,),
        orders=Orders({"lower": (True, False), "offset": (0, 1, -1)}),
    ),
    OperatorCase(
        "maketrian",
        maketrian,
        _triangle_recipes(packed=True),
        ("general",),
        ("v",),
        draw=_draw_packed,
        saved=(0,),
    ),
)
