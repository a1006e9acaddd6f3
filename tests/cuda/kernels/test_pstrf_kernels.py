"""pstrf: the CUDA kernels against the fallback."""

from __future__ import annotations

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import pstrf as _pstrf

machines = pytest.mark.parametrize("machine", MACHINES)


@pytest.fixture(params=[256, 0], ids=["one block", "a launch per step"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the kernels: one block for each matrix, or one launch per pivot."""
    monkeypatch.setattr(_thresholds, "PSTRF_IN_BLOCK", request.param)


def draw_matrices(machine: Machine, items: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    X = torch.randn(items, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (X @ X.mT / n + torch.eye(n)).to(machine.device, dtype)


def factorise(
    machine: Machine, A: Tensor, most: int, tol: float | None = None, cell: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    items, n, _ = A.shape
    L = torch.full((items, most, n), torch.nan, dtype=A.dtype, device=A.device).mT
    pivots, rank = L.new_empty((items, n), dtype=torch.int64), L.new_empty(items, dtype=torch.int64)
    for plan in _pstrf.plan_factorisation(L, pivots, rank, A, tol, cell):
        machine.launch(plan)
    return L, pivots, rank


def check_as_fallback(machine: Machine, A: Tensor, most: int, tol: float | None = None) -> Tensor:
    """Compare with the fallback, and return the ranks."""
    items, n, _ = A.shape
    wanted = A.new_empty((items, n, most))
    pivots, rank = A.new_empty((items, n), dtype=torch.int64), A.new_empty(items, dtype=torch.int64)
    assert _fallback.pstrf(wanted, pivots, rank, A, tol, True) is None
    found = factorise(machine, A.tril() + torch.full_like(A, torch.nan).triu(1), most, tol)
    assert torch.equal(found[1], pivots)
    assert torch.equal(found[2], rank)
    assert_close(found[0], wanted, of_order(n))
    return rank


@machines
@pytest.mark.parametrize(
    ("n", "most", "dtype"), [(1, 1, torch.float64), (5, 3, torch.float32), (70, 70, torch.float64)]
)
@pytest.mark.usefixtures("kernels")
def test_factor_pivots_and_rank(machine: Machine, n: int, most: int, dtype: torch.dtype) -> None:
    A = draw_matrices(machine, 3, n, dtype)
    assert check_as_fallback(machine, A, most).tolist() == [most] * 3


@machines
@pytest.mark.usefixtures("kernels")
def test_each_matrix_ends_at_its_own_rank(machine: Machine) -> None:
    A = draw_matrices(machine, 4, 40)
    X = A[1, :, :7].clone()
    A[1] = X @ X.mT
    A[2] = 0.0
    A[3] = -A[3]
    assert check_as_fallback(machine, A, 40).tolist() == [40, 7, 0, 0]
    assert check_as_fallback(machine, A[:1], 40, tol=1.5)[0] < 40


@machines
@pytest.mark.usefixtures("kernels")
def test_of_equal_remainders_the_first_place_wins(machine: Machine) -> None:
    A = torch.eye(6, dtype=torch.float64, device=machine.device).repeat(2, 1, 1)
    A[1] += torch.diag(torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 0.0], device=machine.device))
    check_as_fallback(machine, A, 6)
    assert factorise(machine, A, 6)[1][1].tolist() == [2, 4, 0, 3, 1, 5]


@machines
@pytest.mark.usefixtures("kernels")
def test_the_first_item_that_is_not_finite_is_reported(machine: Machine) -> None:
    A = draw_matrices(machine, 5, 9)
    cell = _items.create_status_cell(A)
    factorise(machine, A, 9, cell=cell)
    assert _items.read_first_failure(cell) is None
    A[3, 2, 2] = torch.inf
    A[4, 0, 0] = torch.nan
    # The first pivot is in its row, so that after the first step all that remains is NaN.
    A[2, 8, 8], A[2, 8, 1] = 100.0, torch.nan
    factorise(machine, A, 9, cell=cell)
    assert _items.read_first_failure(cell) == (2, -2)


@machines
def test_operands_and_result_of_the_gradient(machine: Machine) -> None:
    n, rank = 7, torch.tensor([7, 4, 0], device=machine.device)
    L, gL = (torch.randn(3, n, n, dtype=torch.float64).to(machine.device).mT for _ in range(2))
    M, G = (torch.zeros_like(L, memory_format=torch.contiguous_format) for _ in range(2))
    machine.launch(_pstrf.plan_vjp_begin(M, G, L, gL, rank))
    computed = torch.arange(n, device=machine.device) < rank[:, None, None]
    identity = torch.eye(n, dtype=torch.float64, device=machine.device)
    assert torch.equal(M, torch.where(computed, L.tril(), identity))
    assert torch.equal(G, torch.where(computed, gL.tril(), 0.0))
    pivots = torch.stack([torch.randperm(n) for _ in range(3)]).to(machine.device)
    gA = torch.full_like(M, torch.nan)
    machine.launch(_pstrf.plan_vjp_end(gA, M, pivots))
    for item in range(3):
        assert torch.equal(gA[item][pivots[item]][:, pivots[item]], M[item])
