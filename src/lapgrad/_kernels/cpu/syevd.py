"""syevd: eigenvalues and eigenvectors of a symmetric matrix, on the compiled core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable, transpose_operand
from lapgrad._kernels.native import core

#: Up to this order, cotangents of the last k vectors are padded with zeros: one kernel for all vectors takes
#: less time than the dozens of torch operations in the formula for k of them.
_PADDED_ORDER = 64


def syevd(eigenvalues: Tensor, U: Tensor | None, A: Tensor, lower: bool) -> tuple[int, int] | None:
    A = make_readable(A)
    read = describe_operand(A) if lower else transpose_operand(describe_operand(A))
    failure: tuple[int, int] | None = core.syevd(
        A.element_size(),
        read,
        0 if U is None else U.data_ptr(),
        eigenvalues.data_ptr(),
        count_items(A),
        A.shape[-1],
    )
    return failure


def serves_syevd_vjp(U: Tensor, gU: Tensor | None, slope: Tensor | None) -> bool:
    """Return whether all n eigenvectors and eigenvalues have a cotangent, or the matrices are small.

    For the last k of larger matrices the gradient is three products, which torch computes as fast.
    """
    n = U.shape[-1]
    if n <= _PADDED_ORDER:
        return True
    return (gU is None or gU.shape[-2] == n) and (slope is None or slope.shape[-1] == n)


def syevd_vjp(
    gA: Tensor,
    U: Tensor,
    eigenvalues: Tensor,
    gU: Tensor | None,
    slope: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Any:
    """gA, and (item, 1) for the first item on which the loss has no derivative, else None."""
    n = U.shape[-1]
    if gU is not None and gU.shape[-2] < n:
        gU = torch.cat([gU.new_zeros((*gU.shape[:-2], n - gU.shape[-2], n)), gU], -2)
    if slope is not None and slope.shape[-1] < n:
        slope = torch.cat([slope.new_zeros((*slope.shape[:-1], n - slope.shape[-1])), slope], -1)
    U, eigenvalues = U.contiguous(), eigenvalues.contiguous()
    gU = None if gU is None else make_readable(gU)
    slope = None if slope is None else slope.contiguous()
    return core.syevd_vjp(
        U.element_size(),
        U.data_ptr(),
        eigenvalues.data_ptr(),
        (0, 0, 0, 0) if gU is None else describe_operand(gU),
        0 if slope is None else slope.data_ptr(),
        POLICY_NUMBERS[degeneracy],
        tol,
        gA.data_ptr(),
        count_items(U),
        n,
    )
