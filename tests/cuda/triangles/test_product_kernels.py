"""Triangular and symmetric products of small matrices: the CUDA kernel against the definition."""

from __future__ import annotations

import itertools

import pytest
import torch
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.small import products as _products

machines = pytest.mark.parametrize("machine", MACHINES)

#: (items, order, columns or terms): one tile and several, full and partial.
SHAPES = ((3, 1, 1), (2, 5, 40), (1, 33, 7), (2, 70, 33))


def draw(machine: Machine, *shape: int, dtype: torch.dtype = torch.float64, turned: bool = False) -> Tensor:
    """Return a matrix inside of a larger one, stored by rows or by columns."""
    items, m, n = shape
    if turned:
        return draw(machine, items, n, m, dtype=dtype).mT
    return torch.randn(items, m + 1, n + 2, dtype=dtype).to(machine.device)[:, 1:, :n]


def make_guarded(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Return a contiguous matrix of NaNs, and the number behind it."""
    memory = like.new_full((torch.Size(shape).numel() + 1,), torch.nan)
    return memory[:-1].view(shape), memory[-1]


@machines
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetric_results(machine: Machine, dtype: torch.dtype) -> None:
    for (items, n, k), turned in itertools.product(SHAPES, (False, True)):
        A = draw(machine, items, n, k, dtype=dtype, turned=turned)
        B, behind = make_guarded(A, items, n, n)
        machine.launch(_products.plan_symmetric_result(B, A))
        assert_close(B, A @ A.mT, of_order(k))
        assert torch.equal(B, B.mT)
        assert behind.isnan()


@machines
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_results(machine: Machine, lower: bool) -> None:
    for (items, n, k), turned in itertools.product(SHAPES, (False, True)):
        A, B = draw(machine, items, n, k, turned=turned), draw(machine, items, k, n, turned=not turned)
        C, behind = make_guarded(A, items, n, n)
        machine.launch(_products.plan_triangular_result(C, A, B, lower, -0.5))
        expected = -0.5 * (A @ B)
        assert_close(C, expected.tril() if lower else expected.triu(), of_order(k))
        assert behind.isnan()


@machines
@pytest.mark.parametrize(
    ("lower", "transpose", "rightside"), list(itertools.product((True, False), repeat=3))
)
def test_triangular_factors(machine: Machine, lower: bool, transpose: bool, rightside: bool) -> None:
    """The other triangle is not read: a NaN there changes nothing."""
    for items, n, m in SHAPES:
        L = draw(machine, items, n, n)
        triangle = L.tril() if lower else L.triu()
        L.masked_fill_((triangle == 0) & (L != 0), torch.nan)
        factor = triangle.mT if transpose else triangle
        A = draw(machine, items, m, n) if rightside else draw(machine, items, n, m)
        C, behind = make_guarded(A, *A.shape)
        machine.launch(_products.plan_triangular_factor(C, L, A, lower, transpose, rightside))
        assert_close(C, A @ factor if rightside else factor @ A, of_order(n))
        assert behind.isnan()
