"""The operators of torch that overrides stand in front of, and what translates them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lapgrad._translation import cholesky, cholesky_solve, eigh, lu, qr, solve_triangular, svd

#: f(*arguments, **options of the operator): whether lapgrad can compute it, or must.
Question = Callable[..., bool]


def _square(A: Tensor, *_: Any, **__: Any) -> bool:
    return A.shape[-1] == A.shape[-2]


def _always(*_: Any, **__: Any) -> bool:
    return True


def _fits_triangle(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, **options: Any) -> bool:
    if B.dim() < 2 or options.get("unitriangular") or not _square(A) or not _same_kind(A, B):
        return False
    return A.shape[-1] == B.shape[-2 if left else -1] and _broadcasts(A, B)


def _fits_older_triangle(
    B: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> bool:
    return _fits_triangle(A, B, upper=upper, unitriangular=unitriangular)


def _fits_factor(B: Tensor, L: Tensor, *_: Any) -> bool:
    return _square(L) and _same_kind(B, L) and L.shape[:-1] == B.shape[:-1]


def _same_kind(A: Tensor, B: Tensor) -> bool:
    return A.dtype is B.dtype and A.device == B.device


def _broadcasts(A: Tensor, B: Tensor) -> bool:
    pairs = zip(reversed(A.shape[:-2]), reversed(B.shape[:-2]), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def _eigh_serves(A: Tensor, UPLO: str = "L", *_: Any) -> bool:
    return _square(A) and UPLO in ("L", "U", "l", "u")


def _with_vectors(A: Tensor, _: Any = None, vectors: bool = True, **__: Any) -> bool:
    return vectors


def _with_q(A: Tensor, mode: str = "reduced") -> bool:
    return mode != "r"


def _unsafe_lu(A: Tensor, *_: Any, **__: Any) -> bool:
    return lu.is_unsafe(A)


def _square_lu(A: Tensor, *others: Tensor, pivot: bool = True, **_: Any) -> bool:
    return pivot and _square(A)


@dataclasses.dataclass(frozen=True)
class Route:
    """One operator of torch's dispatcher and its translation.

    Attributes:
        name: What users call it in ``accelerate(only=...)``.
        operator: Its name in torch's dispatcher.
        compute: The values; see ``lapgrad._translation``.
        record: The values with derivatives; None: the derivatives are torch's.
        out: Overload with ``out=``, and the names of its results there; None where another operator does it.
        matrix: Position of the matrix whose order and number decide.
        right_side: Position of the right-hand side, if there is one.
        tensors: How many operands there are.
        serves: Whether lapgrad computes a call with these arguments.
        records: Whether it also has the derivatives.
        must: Whether lapgrad has to compute it, whatever is faster, because torch's kernel is wrong.
        devices: Where.
    """

    name: str
    operator: str
    compute: Callable[..., Any]
    record: Callable[..., Any] | None = None
    out: tuple[str, tuple[str, ...]] | None = None
    matrix: int = 0
    right_side: int | None = None
    tensors: int = 1
    serves: Question = _square
    records: Question = _always
    must: Question | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")


ROUTES = (
    Route(
        "cholesky",
        "linalg_cholesky_ex",
        cholesky.compute_cholesky_ex,
        cholesky.record_cholesky_ex,
        ("L", ("L", "info")),
    ),
    # With out= it calls itself without.
    Route("cholesky", "cholesky", cholesky.compute_cholesky, cholesky.record_cholesky),
    Route(
        "solve_triangular",
        "linalg_solve_triangular",
        solve_triangular.compute_solve_triangular,
        solve_triangular.record_solve_triangular,
        ("out", ("out",)),
        right_side=1,
        tensors=2,
        serves=_fits_triangle,
    ),
    Route(
        "solve_triangular",
        "triangular_solve",
        solve_triangular.compute_triangular_solve,
        None,
        ("X", ("X", "M")),
        matrix=1,
        right_side=0,
        tensors=2,
        serves=_fits_older_triangle,
    ),
    Route(
        "cholesky_solve",
        "_cholesky_solve_helper",
        cholesky_solve.compute_cholesky_solve,
        matrix=1,
        right_side=0,
        tensors=2,
        serves=_fits_factor,
    ),
    Route(
        "cholesky_inverse",
        "cholesky_inverse",
        cholesky_solve.compute_cholesky_inverse,
        out=("out", ("out",)),
    ),
    Route(
        "eigh",
        "_linalg_eigh",
        eigh.compute_eigh,
        eigh.record_eigh,
        ("eigenvalues", ("eigenvalues", "eigenvectors")),
        serves=_eigh_serves,
        records=_with_vectors,
    ),
    Route(
        "svd",
        "_linalg_svd",
        svd.compute_svd,
        svd.record_svd,
        ("U", ("U", "S", "Vh")),
        serves=svd.serves_svd,
        records=_with_vectors,
    ),
    Route(
        "qr",
        "linalg_qr",
        qr.compute_qr,
        qr.record_qr,
        ("out", ("Q", "R")),
        serves=qr.serves_qr,
        records=_with_q,
    ),
    Route(
        "inv",
        "linalg_inv_ex",
        lu.compute_inv_ex,
        out=("inverse", ("inverse", "info")),
        must=_unsafe_lu,
        devices=("cpu",),
    ),
    # inv, solve, det and slogdet of torch factorise by this operator: they are safe with it.
    Route(
        "lu_factor",
        "linalg_lu_factor_ex",
        lu.compute_lu_factor_ex,
        out=("out", ("LU", "pivots", "info")),
        serves=_square_lu,
        must=_unsafe_lu,
        devices=("cpu",),
    ),
)

#: Functions of torch that are made of LU factorisations.
_MADE_OF_LU = frozenset(("det", "inv", "slogdet", "solve"))

#: The names that ``accelerate(only=...)`` takes.
NAMES = frozenset(route.name for route in ROUTES) | _MADE_OF_LU


def with_parts(names: frozenset[str]) -> frozenset[str]:
    """``names``, and those of the operators that these are made of."""
    return names | {"lu_factor"} if names & _MADE_OF_LU else names
