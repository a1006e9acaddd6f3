"""What det and slogdet share: factors that are kept or not, and weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapgrad._kernels.cpu._operands import items, operand, readable
from lapgrad._kernels.native import core


def run(
    first: Tensor, second: Tensor | None, LU: Tensor, pivots: Tensor, A: Tensor
) -> tuple[int, int] | None:
    A = readable(A)
    failure: tuple[int, int] | None = core.determinant(
        A.element_size(),
        *operand(A),
        first.data_ptr(),
        0 if second is None else second.data_ptr(),
        *_addresses(LU, pivots),
        items(A),
        A.shape[-1],
    )
    return failure


def run_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor, by_determinant: bool) -> Any:
    A, weight, LU, pivots = readable(A), weight.contiguous(), LU.contiguous(), pivots.contiguous()
    return core.determinant_vjp(
        A.element_size(),
        *operand(A),
        *_addresses(LU, pivots),
        weight.data_ptr(),
        by_determinant,
        gA.data_ptr(),
        items(A),
        A.shape[-1],
    )


def _addresses(LU: Tensor, pivots: Tensor) -> tuple[int, int]:
    return (LU.data_ptr(), pivots.data_ptr()) if LU.numel() else (0, 0)
