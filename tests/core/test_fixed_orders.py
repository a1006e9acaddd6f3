"""Orders with their own kernels (csrc/small/fixed.h: 4, 8, 16) and their neighbours on every instruction set.

Batches of triangular and symmetric products run on these kernels, and gradients of the other operators are
made of such products. A kernel compiled for one order loads, transposes and stores whole vectors, so both
orders of storage are tried, inside memory that is NaN elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paths import take_path
from samples import OPERATORS, Sample, join_results
from sized import list_flag_choices, sample
from tolerances import assert_all_close, of_order
from torch import Tensor

from lapgrad._kernels import cpu as _cpu

pytestmark = pytest.mark.cpu

ORDERS = (4, 5, 6, 7, 8, 9, 12, 15, 16, 17)
#: More than one vector of lanes on every instruction set (16 matrices at most), and a rest of 3.
BATCH = 19
DTYPES = (torch.float64, torch.float32)

#: Products, and the operators whose values or gradients are made of batches of them.
OF_PRODUCTS = (
    "trmm", "gemmt", "syrk", "trsm", "potrf", "potri", "copyltu", "linalg.cho_solve",
    "linalg.solve_psd", "linalg.inverse_psd", "linalg.logdet_psd", "fused.mvn_nll", "gelqf", "inverse",
)  # fmt: skip


def store_row_major(A: Tensor) -> Tensor:
    return A.contiguous()


def store_column_major(A: Tensor) -> Tensor:
    return A.mT.contiguous().mT


def store_padded(A: Tensor) -> Tensor:
    """Return A with gaps of NaN between its rows in memory."""
    *batch, m, n = A.shape
    memory = A.new_full((*batch, m + 1, n + 3), torch.nan)
    return memory[..., :m, 1 : n + 1].copy_(A)


def store_padded_column_major(A: Tensor) -> Tensor:
    return store_padded(A.mT).mT


def share_first_item(A: Tensor) -> Tensor:
    """One matrix for all items of the batch."""
    return A[:1].expand_as(A)


LAYOUTS = (store_row_major, store_column_major, store_padded, store_padded_column_major, share_first_item)
Layout = Callable[[Tensor], Tensor]
Results = list[Tensor]


def make_cotangent(result: Tensor) -> Tensor:
    """Return a cotangent with entries of both signs in both triangles."""
    return torch.cos(torch.arange(result.numel(), dtype=torch.float64)).view(result.shape).to(result.dtype)


def compute_value_and_gradients(
    f: Callable[..., Any], one: Sample, layout: Layout = store_row_major
) -> Results:
    """Return value and gradients of f, with operands and cotangent in that layout."""
    leaves = [layout(arg.detach()).requires_grad_() for arg in one.args]
    result = join_results(f(*leaves, **one.kwargs))
    cotangent = make_cotangent(result)
    cotangent = layout(cotangent) if result.dim() == 3 and layout is not share_first_item else cotangent
    return [result.detach(), *torch.autograd.grad(result, leaves, cotangent)]


@functools.cache
def compute_expected(
    name: str, n: int, other: int, dtype: torch.dtype, same: bool
) -> list[tuple[Sample, Results]]:
    """Return samples with all flags, and their values and gradients by torch in float64.

    With ``same`` all items of a batch are equal.
    """
    found = []
    for flags in list_flag_choices(name):
        one = sample(name, n, flags, other=other, batch=(BATCH,), dtype=dtype)
        double = Sample(tuple(arg.double() for arg in one.args), flags, one.id)
        results = compute_value_and_gradients(
            OPERATORS[name].reference, double, share_first_item if same else store_row_major
        )
        found.append((one, [result.to(dtype) for result in results]))
    return found


def check(name: str, n: int, other: int, dtype: torch.dtype, layouts: tuple[Layout, ...]) -> None:
    case = OPERATORS[name]
    units = of_order(n) * case.condition(n)
    for layout in layouts:
        for one, expected in compute_expected(name, n, other, dtype, layout is share_first_item):
            assert_all_close(compute_value_and_gradients(case.fn, one, layout), expected, units)


@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OF_PRODUCTS)
def test_values_and_gradients(name: str, dtype: torch.dtype, isa: str) -> None:
    with take_path("default", isa):
        for n in ORDERS:
            check(name, n, n, dtype, (store_row_major,))


@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["trmm", "gemmt", "syrk", "trsm"])
def test_layouts_and_other_sides(name: str, dtype: torch.dtype, isa: str) -> None:
    """All layouts; also a second dimension of another size, for which there is no kernel of fixed order."""
    with take_path("default", isa):
        for n in (4, 8, 16):
            check(name, n, n, dtype, LAYOUTS)
            for other in (n - 1, n + 1):
                check(name, n, other, dtype, (store_row_major, store_column_major))


@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_in_place(dtype: torch.dtype, isa: str) -> None:
    """trmm reads a matrix to its end before it writes: the result may take its memory, in any layout."""
    case = OPERATORS["trmm"]
    with take_path("default", isa):
        for n in ORDERS:
            for one, (value, *_) in compute_expected("trmm", n, n, dtype, False):
                for layout in LAYOUTS[:-1]:
                    target = layout(one.args[1].clone())
                    assert case.fn(one.args[0], target, **one.kwargs, overwrite=True) is target
                    assert_all_close(target, value, of_order(n))


@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_triangle(dtype: torch.dtype, isa: str) -> None:
    """gemmt sets it to zero, syrk to the same bits, and trmm does not read that of its triangular matrix."""
    with take_path("default", isa):
        for n in ORDERS:
            for flags in list_flag_choices("gemmt"):
                one = sample("gemmt", n, flags, batch=(BATCH,), dtype=dtype)
                result = OPERATORS["gemmt"].fn(*one.args, **flags)
                other = result.triu(1) if flags["lower"] else result.tril(-1)
                assert torch.count_nonzero(other) == 0
            for flags in list_flag_choices("syrk"):
                one = sample("syrk", n, flags, batch=(BATCH,), dtype=dtype)
                result = OPERATORS["syrk"].fn(*one.args, **flags)
                assert torch.equal(result, result.mT)
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            for one, (value, *_) in compute_expected("trmm", n, n, dtype, False):
                L, A = one.args
                L = L.masked_fill(hidden if one.kwargs["lower"] else hidden.mT, torch.nan)
                assert_all_close(OPERATORS["trmm"].fn(L, A, **one.kwargs), value, of_order(n))
