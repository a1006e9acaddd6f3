"""trsm and trmm of batches of small triangles: the CUDA kernels against the fallback."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import triangular as _triangular_batch

#: (order, columns, dtype): each kernel, with one column, several items per block, or several blocks per item.
CASES = [(1, 1, torch.float64), (3, 5, torch.float64), (4, 1, torch.float64), (50, 3, torch.float64)]
CASES += [(3, 300, torch.float32)]
#: Values of lower, transpose and rightside.
FLAGS = list(itertools.product((True, False), repeat=3))
machines = pytest.mark.parametrize("machine", MACHINES)


def make_operands(
    n: int, columns: int, dtype: torch.dtype, machine: Machine, rightside: bool, items: int = 5
) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(n)
    L = torch.randn(items, n, n, generator=source, dtype=torch.float64) / n**0.5
    L = L + 2 * torch.eye(n)
    shape = (items, columns, n) if rightside else (items, n, columns)
    A = torch.randn(shape, generator=source, dtype=torch.float64)
    return L.to(machine.device, dtype), A.to(machine.device, dtype)


def run_triangular(
    machine: Machine, L: Tensor, A: Tensor, flags: tuple[bool, bool, bool], solve: bool
) -> Tensor:
    X = torch.full_like(A, torch.nan)
    machine.launch(_triangular_batch.plan_application(X, L, A, *flags, solve, cell=None))
    return X


def compute_expected(L: Tensor, A: Tensor, flags: tuple[bool, bool, bool], solve: bool) -> Tensor:
    X = torch.empty_like(A)
    assert (_fallback.trsm if solve else _fallback.trmm)(X, L, A, *flags) is None
    return X


@machines
@pytest.mark.parametrize("solve", [True, False], ids=["trsm", "trmm"])
@pytest.mark.parametrize(("n", "columns", "dtype"), CASES)
def test_all_flags(machine: Machine, n: int, columns: int, dtype: torch.dtype, solve: bool) -> None:
    for flags in FLAGS:
        lower, _, rightside = flags
        L, A = make_operands(n, columns, dtype, machine, rightside)
        below = torch.ones_like(L).tril().bool()
        half = torch.where(below if lower else below.mT, L, torch.nan)
        assert_close(
            run_triangular(machine, half, A, flags, solve), compute_expected(L, A, flags, solve), of_order(n)
        )


@machines
@pytest.mark.parametrize("solve", [True, False], ids=["trsm", "trmm"])
def test_any_strides_in_place_and_one_triangle_for_all(machine: Machine, solve: bool) -> None:
    for flags in FLAGS:
        L, A = make_operands(4, 3, torch.float64, machine, flags[2])
        shared = L[:1].expand_as(L)
        apart = A.new_zeros(5, 2 * A.shape[1], A.shape[2] + 2)[:, ::2, 1:-1].copy_(A)
        wanted = compute_expected(shared, A, flags, solve)
        assert_close(run_triangular(machine, shared, A.mT.contiguous().mT, flags, solve), wanted, of_order(4))
        machine.launch(_triangular_batch.plan_application(apart, shared, apart, *flags, solve, cell=None))
        assert_close(apart, wanted, of_order(4))


@machines
def test_a_zero_pivot_is_reported_and_nothing_is_written(machine: Machine) -> None:
    L, A = make_operands(4, 3, torch.float64, machine, False, items=200)
    cell = _items.create_status_cell(A)
    machine.launch(_triangular_batch.plan_zero_pivot_search(L, cell))
    assert _items.read_first_failure(cell) is None
    L[150, 2, 2] = 0.0
    L[77, 3, 3] = -0.0
    L[150, 1, 1] = 0.0
    machine.launch(_triangular_batch.plan_zero_pivot_search(L, cell))
    X = A.clone()
    machine.launch(_triangular_batch.plan_application(X, L, A, *FLAGS[0], solve=True, cell=cell))
    assert torch.equal(X, A)
    assert _items.read_first_failure(cell) == (77, 3)
    assert _items.read_first_failure(cell) is None


@machines
@pytest.mark.parametrize("n", [4, 20])
def test_a_solve_reports_zero_pivots_by_itself(machine: Machine, n: int) -> None:
    """By their place in L, whichever triangle, side and transposition."""
    for flags in FLAGS:
        L, A = make_operands(n, 3, torch.float64, machine, flags[2])
        cell, X = _items.create_status_cell(A), torch.empty_like(A)
        machine.launch(_triangular_batch.plan_application(X, L, A, *flags, True, cell, search=True))
        assert _items.read_first_failure(cell) is None
        assert_close(X, compute_expected(L, A, flags, True), of_order(n))
        L[3, 1, 1] = L[3, 2, 2] = L[4, 0, 0] = 0.0
        machine.launch(_triangular_batch.plan_application(X, L, A, *flags, True, cell, search=True))
        assert _items.read_first_failure(cell) == (3, 1)


@pytest.mark.parametrize("n", [2, 8, 16, 17, 32, 33, 64, 100, 128])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("solve", [True, False], ids=["trsm", "trmm"])
@pytest.mark.parametrize("machine", MACHINES[-1:])
def test_all_sizes_on_a_device(machine: Machine, n: int, dtype: torch.dtype, solve: bool) -> None:
    for flags, columns in itertools.product(FLAGS, (1, 7, n, 200)):
        L, A = make_operands(n, columns, dtype, machine, flags[2], items=300)
        assert_close(
            run_triangular(machine, L, A, flags, solve), compute_expected(L, A, flags, solve), of_order(n)
        )
