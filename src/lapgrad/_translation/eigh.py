"""_linalg_eigh: what ``syevd`` computes, with eigenvectors as columns.

Eigenvectors have lapgrad's signs: the leading entry is positive. (torch leaves the signs to LAPACK, which
chooses them differently from release to release.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.define import Formulas, define
from lapgrad._translation._results import allocate_column_major
from lapgrad._translation._torch_kernels import run_torch
from lapgrad.ops import syevd as _syevd


def compute_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues, and eigenvectors as columns, column-major (or an empty tensor)."""
    upper = UPLO.upper() == "U"
    if compute_v:
        return _decompose(A, upper)
    eigenvalues = A.new_empty(A.shape[:-1])
    if lookup("syevd", A)(eigenvalues, None, A, not upper) is None:
        return eigenvalues, A.new_empty((0,))
    values, nothing = run_torch("_linalg_eigh", A, UPLO, False)
    return values, nothing


def record_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """``compute_eigh`` with derivatives, which need the eigenvectors."""
    assert compute_v
    eigenvalues, V = operator.call(A, UPLO.upper() == "U")
    return eigenvalues, V


def _decompose(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    eigenvalues, V = _fake(A, upper)
    if lookup("syevd", A)(eigenvalues, V.mT, A, not upper) is None:
        return eigenvalues, V
    eigenvalues, V = run_torch("_linalg_eigh", A, "U" if upper else "L", True)
    return eigenvalues, V


def _fake(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1]), allocate_column_major(A, *A.shape[-2:])


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    slope: Tensor | None,
    gV: Tensor | None,
) -> tuple[Tensor]:
    eigenvalues, V = saved
    gU = None if gV is None else gV.mT
    return (_syevd.operator_vjp.call(V.mT, eigenvalues, gU, slope, _syevd.QUIET, None),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalues, V = saved
    dU, slope = _syevd.compute_jvp((V.mT, eigenvalues), (True, _syevd.QUIET, None), dA)
    return slope, dU.mT


_EIGENVALUES, _V = 1, 2

operator = define(
    "linalg_eigh",
    "(Tensor A, bool upper) -> (Tensor, Tensor)",
    kernel=_decompose,
    fake=_fake,
    formulas=Formulas(saves=((_EIGENVALUES, _V),), vjp=_vjp, jvp=_jvp),
)
