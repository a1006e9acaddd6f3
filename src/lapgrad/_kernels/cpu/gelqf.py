"""gelqf: LQ factorisation, on the compiled core."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items, describe_operand, make_readable
from lapgrad._kernels.native import core


def gelqf(L: Tensor, Q: Tensor | None, A: Tensor, positive: bool) -> tuple[int, int] | None:
    A = _make_row_major(A)
    m, n = A.shape[-2:]
    found: tuple[int, int] | None = core.gelqf(
        A.element_size(),
        describe_operand(A),
        0 if Q is None else Q.data_ptr(),
        L.data_ptr(),
        count_items(A),
        m,
        n,
        positive,
    )
    return found


def find_dependent_row(L: Tensor, tolerance: float, relative_to_largest: bool) -> tuple[int, int] | None:
    L = make_readable(L)
    found: tuple[int, int] | None = core.find_dependent_row(
        L.element_size(), describe_operand(L), count_items(L), *L.shape[-2:], tolerance, relative_to_largest
    )
    return found


def find_dependent_row_later(
    L: Tensor, tolerance: float, relative_to_largest: bool
) -> Callable[[], tuple[int, int] | None]:
    found = find_dependent_row(L, tolerance, relative_to_largest)
    return lambda: found


def gelqf_vjp(gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> None:
    Q, L = Q.contiguous(), L.contiguous()
    gQ = None if gQ is None else gQ.contiguous()
    gL = None if gL is None else gL.contiguous()
    core.gelqf_vjp(
        L.element_size(),
        Q.data_ptr(),
        L.data_ptr(),
        0 if gQ is None else gQ.data_ptr(),
        0 if gL is None else gL.data_ptr(),
        gA.data_ptr(),
        count_items(L),
        *gA.shape[-2:],
    )


def gelqf_l_vjp(gA: Tensor, A: Tensor, L: Tensor, gL: Tensor) -> None:
    A, L, gL = _make_row_major(A), L.contiguous(), gL.contiguous()
    core.gelqf_l_vjp(
        L.element_size(),
        describe_operand(A),
        L.data_ptr(),
        gL.data_ptr(),
        gA.data_ptr(),
        count_items(L),
        *gA.shape[-2:],
    )


#: Up to this many elements a matrix of a batch is copied rather than read across its rows.
_SMALL = 32 * 32


def _make_row_major(A: Tensor) -> Tensor:
    """Return A, or a contiguous copy: of batches of small matrices, and where the core cannot read A."""
    if A.dim() > 2 and A.shape[-1] * A.shape[-2] <= _SMALL:
        return A.contiguous()
    return make_readable(A)
