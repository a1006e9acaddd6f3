"""The operators of torch that overrides stand in front of, and what translates them."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lapgrad._torch.lu import LARGEST_UNBLOCKED_ORDER
from lapgrad._translation import (
    cholesky,
    cholesky_solve,
    eigh,
    isclose,
    lu,
    qr,
    recorded_lu,
    solve_triangular,
    svd,
)

#: f(*arguments, **options of the operator): whether lapgrad can compute it, or must.
Predicate = Callable[..., bool]


def _is_square(A: Tensor, *_: Any, **__: Any) -> bool:
    return A.shape[-1] == A.shape[-2]


def _accepts_all(*_: Any, **__: Any) -> bool:
    return True


def _fits_triangle(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, **options: Any) -> bool:
    if B.dim() < 2 or options.get("unitriangular") or not _is_square(A) or not _have_same_kind(A, B):
        return False
    return A.shape[-1] == B.shape[-2 if left else -1] and _can_broadcast(A, B)


def _fits_older_triangle(
    B: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> bool:
    return _fits_triangle(A, B, upper=upper, unitriangular=unitriangular)


def _fits_factor(B: Tensor, L: Tensor, *_: Any) -> bool:
    return _is_square(L) and _have_same_kind(B, L) and L.shape[:-1] == B.shape[:-1]


def _have_same_kind(A: Tensor, B: Tensor) -> bool:
    return A.dtype is B.dtype and A.device == B.device


def _can_broadcast(A: Tensor, B: Tensor) -> bool:
    pairs = zip(reversed(A.shape[:-2]), reversed(B.shape[:-2]), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def _serves_eigh(A: Tensor, UPLO: str = "L", *_: Any) -> bool:
    return _is_square(A) and UPLO in ("L", "U", "l", "u")


def _has_vectors(A: Tensor, _: Any = None, vectors: bool = True, **__: Any) -> bool:
    return vectors


def _has_q(A: Tensor, mode: str = "reduced") -> bool:
    return mode != "r"


def _is_unsafe_lu(A: Tensor, *_: Any, **__: Any) -> bool:
    return lu.is_unsafe(A)


def _has_pivots(A: Tensor, *, pivot: bool = True, **_: Any) -> bool:
    return pivot and (A.is_cpu or lu.is_served_on_device(A))


def _serves_lu(A: Tensor, *_: Any, **__: Any) -> bool:
    return _is_square(A) and (A.is_cpu or lu.is_served_on_device(A))


def _fits_solve(A: Tensor, B: Tensor, **_: Any) -> bool:
    if not _is_square(A) or not _have_same_kind(A, B):
        return False
    if A.is_cpu:
        return True
    is_one_each = lu.is_vector_of(A, B) if B.dim() < A.dim() else A.shape[:-2] == B.shape[:-2]
    return is_one_each and B.numel() > 0 and lu.is_served_on_device(A)


class Shape(enum.IntEnum):
    """Shapes that a gate checks itself (csrc/bind/bind_gate.cpp), so that ``serves`` need not be asked."""

    ANY = 0
    SQUARE = 1
    TRIANGLE = 2
    BARE = 3  # any, without arguments after the tensors
    BARE_SQUARE = 4


@dataclasses.dataclass(frozen=True)
class Route:
    """One operator of torch's dispatcher and its translation.

    Attributes:
        name: What users call it in ``accelerate(only=...)``.
        operator: Its name in torch's dispatcher.
        compute: The values; see ``lapgrad._translation``.
        record: The values with derivatives; None: the derivatives are torch's.
        record_eagerly: The same for plain eager calls, if there is a shorter way.
        out: Overload with ``out=``, and the names of its results there; None where another operator does it.
        matrix: Position of the matrix whose order and number decide.
        right_side: Position of the right-hand side, if there is one.
        tensors: How many operands there are.
        serves: Whether lapgrad computes a call with these arguments.
        records: Whether it also has the derivatives.
        must: Whether lapgrad has to compute it, whatever is faster, because torch's kernel is wrong.
        safe_order: ``must`` holds for no batch of this order or a smaller one.
        devices: Where.
        is_composite: torch composes it of other operators, and it has no gradient.
        shape: Of calls that ``compute`` and ``record_eagerly`` serve on a CPU without calling torch.linalg.
    """

    name: str
    operator: str
    compute: Callable[..., Any]
    record: Callable[..., Any] | None = None
    out: tuple[str, tuple[str, ...]] | None = None
    matrix: int = 0
    right_side: int | None = None
    tensors: int = 1
    serves: Predicate = _is_square
    records: Predicate = _accepts_all
    must: Predicate | None = None
    safe_order: int | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    record_eagerly: Callable[..., Any] | None = None
    shape: Shape = Shape.ANY
    is_composite: bool = False


#: A route of an operator that is made of an LU factorisation.
_route_lu = functools.partial(Route, must=_is_unsafe_lu, safe_order=LARGEST_UNBLOCKED_ORDER)

ROUTES = (
    Route(
        "cholesky",
        "linalg_cholesky_ex",
        cholesky.compute_cholesky_ex,
        cholesky.record_cholesky_ex,
        ("L", ("L", "info")),
        record_eagerly=cholesky.record_cholesky_ex_eagerly,
        shape=Shape.SQUARE,
    ),
    # With out= it calls itself without.
    Route(
        "cholesky",
        "cholesky",
        cholesky.compute_cholesky,
        cholesky.record_cholesky,
        record_eagerly=cholesky.record_cholesky_eagerly,
        shape=Shape.SQUARE,
    ),
    Route(
        "solve_triangular",
        "linalg_solve_triangular",
        solve_triangular.compute_solve_triangular,
        solve_triangular.record_solve_triangular,
        ("out", ("out",)),
        right_side=1,
        tensors=2,
        serves=_fits_triangle,
        record_eagerly=solve_triangular.record_solve_triangular_eagerly,
        shape=Shape.TRIANGLE,
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
        serves=_serves_eigh,
        records=_has_vectors,
    ),
    Route(
        "svd",
        "_linalg_svd",
        svd.compute_svd,
        svd.record_svd,
        ("U", ("U", "S", "Vh")),
        serves=svd.serves_svd,
        records=_has_vectors,
    ),
    Route(
        "qr",
        "linalg_qr",
        qr.compute_qr,
        qr.record_qr,
        ("out", ("Q", "R")),
        serves=qr.serves_qr,
        records=_has_q,
        record_eagerly=qr.record_qr_eagerly,
        shape=Shape.BARE,
    ),
    _route_lu(
        "inv",
        "linalg_inv_ex",
        lu.compute_inv_ex,
        out=("inverse", ("inverse", "info")),
        serves=_serves_lu,
    ),
    _route_lu(
        "det",
        "_linalg_det",
        lu.compute_det,
        out=("result", ("result", "LU", "pivots")),
        serves=_serves_lu,
    ),
    _route_lu(
        "slogdet",
        "_linalg_slogdet",
        lu.compute_slogdet,
        out=("sign", ("sign", "logabsdet", "LU", "pivots")),
        serves=_serves_lu,
    ),
    _route_lu(
        "solve",
        "_linalg_solve_ex",
        lu.compute_solve_ex,
        out=("result", ("result", "LU", "pivots", "info")),
        serves=_fits_solve,
    ),
    _route_lu(
        "lu_factor",
        "linalg_lu_factor_ex",
        lu.compute_lu_factor_ex,
        recorded_lu.record_lu_factor_ex,
        ("out", ("LU", "pivots", "info")),
        serves=_has_pivots,
        records=recorded_lu.serves_gradient,
        record_eagerly=recorded_lu.record_lu_factor_ex_eagerly,
        shape=Shape.BARE_SQUARE,
    ),
    _route_lu(
        "lu_factor",
        "linalg_lu",
        lu.compute_lu,
        out=("out", ("P", "L", "U")),
        serves=_has_pivots,
        devices=("cpu",),
    ),
    Route(
        "isclose",
        "isclose",
        isclose.compute_isclose,
        tensors=2,
        serves=isclose.serves_isclose,
        devices=("cpu",),
        is_composite=True,
    ),
)

#: The names that ``accelerate(only=...)`` takes.
NAMES = frozenset(route.name for route in ROUTES)
