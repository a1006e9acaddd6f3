"""det and slogdet on the compiled core; factors are kept for the backward, or not."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable
from lapgrad._kernels.native import core


def run(
    first: Tensor, second: Tensor | None, LU: Tensor, pivots: Tensor, A: Tensor
) -> tuple[int, int] | None:
    A = make_readable(A)
    failure: tuple[int, int] | None = core.determinant(
        A.element_size(),
        describe_operand(A),
        first.data_ptr(),
        0 if second is None else second.data_ptr(),
        *_get_addresses(LU, pivots),
        count_items(A),
        A.shape[-1],
    )
    return failure


def run_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor, by_determinant: bool) -> Any:
    A, weight, LU, pivots = make_readable(A), weight.contiguous(), LU.contiguous(), pivots.contiguous()
    return core.determinant_vjp(
        A.element_size(),
        describe_operand(A),
        *_get_addresses(LU, pivots),
        weight.data_ptr(),
        by_determinant,
        gA.data_ptr(),
        count_items(A),
        A.shape[-1],
    )


def _get_addresses(LU: Tensor, pivots: Tensor) -> tuple[int, int]:
    return (LU.data_ptr(), pivots.data_ptr()) if LU.numel() else (0, 0)
