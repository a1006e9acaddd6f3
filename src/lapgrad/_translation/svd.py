"""_linalg_svd: what ``gesvd`` computes, with left singular vectors as columns.

The signs are lapgrad's: the leading entry of each left singular vector is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad._torch.define import Formulas, define
from lapgrad._torch.layout import allocate_matrix
from lapgrad._translation._results import allocate_column_major
from lapgrad._translation._torch_kernels import run_torch
from lapgrad.ops import _spectral
from lapgrad.ops import gesvd as _gesvd


def serves_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> bool:
    """Whether lapgrad computes this: no vectors of the null space and no algorithm (driver) are asked for."""
    return driver is None and (not full_matrices or not compute_uv or A.shape[-1] == A.shape[-2])


def compute_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, Vh with torch's strides; empty tensors for U and Vh without ``compute_uv``."""
    if not serves_svd(A, full_matrices, compute_uv, driver=driver):
        U, S, Vh = run_torch("_linalg_svd", A, full_matrices, compute_uv, driver=driver)
        return U, S, Vh
    if compute_uv:
        return _decompose(A)
    S = A.new_empty((*A.shape[:-2], min(A.shape[-2:])))
    if lookup("gesvd", A)(S, None, None, A) is None:
        return A.new_empty((0,)), S, A.new_empty((0,))
    U, S, Vh = run_torch("_linalg_svd", A, full_matrices=False, compute_uv=False, driver=None)
    return U, S, Vh


def record_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``compute_svd`` with derivatives, which need the vectors."""
    assert compute_uv
    assert serves_svd(A, full_matrices, True, driver=driver)
    U, S, Vh = operator.call(A)
    return U, S, Vh


def _decompose(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = _fake(A)
    # torch's Vh is column-major on the CPU; lapgrad's kernels write its rows.
    rows = Vh if Vh.is_contiguous() else allocate_matrix(A, *Vh.shape[-2:])
    if lookup("gesvd", A)(S, U.mT, rows, A) is not None:
        U, S, Vh = run_torch("_linalg_svd", A, full_matrices=False, compute_uv=True, driver=None)
    elif rows is not Vh:
        Vh.copy_(rows)
    return U, S, Vh


def _fake(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, n = A.shape[-2:]
    k = min(m, n)
    Vh = allocate_matrix(A, k, n) if A.is_cuda else allocate_column_major(A, k, n)
    return allocate_column_major(A, m, k), A.new_empty((*A.shape[:-2], k)), Vh


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gU: Tensor | None,
    gS: Tensor | None,
    gVh: Tensor | None,
) -> tuple[Tensor]:
    U, S, Vh = saved
    g_rows = None if gU is None else gU.mT
    return (_gesvd.operator_vjp.call(U.mT, S, Vh, g_rows, gS, gVh, _spectral.QUIET, None),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = saved
    dU, dS, dVh = _gesvd.jvp((U.mT, S, Vh), (_spectral.QUIET, None), dA)
    return dU.mT, dS, dVh


_U, _S, _VH = 1, 2, 3

operator = define(
    "linalg_svd",
    "(Tensor A) -> (Tensor, Tensor, Tensor)",
    kernel=_decompose,
    fake=_fake,
    formulas=Formulas(saves=((_U, _S, _VH),), vjp=_vjp, jvp=_jvp),
)
