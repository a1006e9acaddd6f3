"""gesvd: singular value decomposition, on the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cpu._operands import (
    Operand,
    count_items,
    describe_operand,
    make_readable,
    transpose_operand,
)
from lapgrad._kernels.native import core

_ABSENT: Operand = (0, 0, 0, 0)


def gesvd(S: Tensor, U: Tensor | None, V: Tensor | None, A: Tensor) -> tuple[int, int] | None:
    A = make_readable(A)
    u, v = (0, 0) if U is None or V is None else (U.data_ptr(), V.data_ptr())
    failure: tuple[int, int] | None = core.gesvd(
        A.element_size(), describe_operand(A), u, S.data_ptr(), v, count_items(A), A.shape[-2], A.shape[-1]
    )
    return failure


def gesvd_vjp(
    gA: Tensor,
    U: Tensor,
    S: Tensor,
    V: Tensor,
    gU: Tensor | None,
    gS: Tensor | None,
    gV: Tensor | None,
    degeneracy: str,
    tol: float,
) -> Tensor | None:
    gradient = describe_operand(gA)
    if U.shape[-1] > V.shape[-1]:
        U, V, gU, gV, gradient = V, U, gV, gU, transpose_operand(gradient)
    U, S, V = U.contiguous(), S.contiguous(), V.contiguous()
    gU, gV = (None if g is None else make_readable(g) for g in (gU, gV))
    gS = None if gS is None else gS.contiguous()
    ambiguous = torch.zeros(S.shape[:-1], dtype=torch.bool)
    found = core.gesvd_vjp(
        U.element_size(),
        U.data_ptr(),
        S.data_ptr(),
        V.data_ptr(),
        _ABSENT if gU is None else describe_operand(gU),
        0 if gS is None else gS.data_ptr(),
        _ABSENT if gV is None else describe_operand(gV),
        gradient,
        count_items(U),
        U.shape[-1],
        V.shape[-1],
        POLICY_NUMBERS[degeneracy],
        tol,
        ambiguous.data_ptr(),
    )
    return ambiguous if found else None
