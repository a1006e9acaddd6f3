"""The gradient of gelqf of batches of small matrices: the CUDA kernels against the fallback."""

from __future__ import annotations

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch

machines = pytest.mark.parametrize("machine", MACHINES)
WITH = pytest.mark.parametrize(("with_q", "with_l"), [(True, True), (True, False), (False, True)])
CASES = [((m, n), torch.float64) for m, n in ((1, 1), (3, 5), (16, 16), (17, 40), (50, 50), (3, 150))]
CASES += [((20, 33), torch.float32)]


def draw_matrices(items: int, m: int, n: int, dtype: torch.dtype, machine: Machine) -> Tensor:
    source = torch.Generator().manual_seed(m * n)
    drawn = torch.randn(items, m, n, generator=source, dtype=torch.float64) / n**0.5
    return (drawn + 2 * torch.eye(m, n)).to(machine.device, dtype)


def factorise(A: Tensor) -> tuple[Tensor, Tensor]:
    m = A.shape[-2]
    L, Q = A.new_empty(*A.shape[:-2], m, m), torch.empty_like(A)
    assert _fallback.gelqf(L, Q, A, False) is None
    return L, Q


def draw_cotangent(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)


def run_gelqf_vjp(machine: Machine, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None) -> Tensor:
    gA = torch.full_like(Q, torch.nan)
    machine.launch(_gelqf_batch.plan_vjp(gA, Q, L, gQ, gL))
    return gA


@machines
@WITH
@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_gradient(
    machine: Machine, shape: tuple[int, int], dtype: torch.dtype, with_q: bool, with_l: bool
) -> None:
    L, Q = factorise(draw_matrices(2, *shape, dtype, machine))
    gQ, gL = draw_cotangent(Q, 1) if with_q else None, draw_cotangent(L, 2) if with_l else None
    expected = torch.empty_like(Q)
    _fallback.gelqf_vjp(expected, Q, L, gQ, gL)
    upper = torch.full_like(L, torch.nan).triu(1)
    spoilt = None if gL is None else gL.tril() + upper
    assert_close(run_gelqf_vjp(machine, Q, L.tril() + upper, gQ, spoilt), expected, of_order(shape[1]))


@machines
def test_any_strides(machine: Machine) -> None:
    L, Q = factorise(draw_matrices(2, 5, 9, torch.float64, machine))
    gQ, gL = draw_cotangent(Q, 1), draw_cotangent(L, 2)
    expected = run_gelqf_vjp(machine, Q, L, gQ, gL)
    turned = [X.mT.contiguous().mT for X in (Q, L, gQ, gL)]
    assert torch.equal(run_gelqf_vjp(machine, *turned), expected)
    apart = Q.new_zeros(2, 10, 20)[:, ::2, 1:19:2]
    machine.launch(_gelqf_batch.plan_vjp(apart, Q, L, gQ[:1].expand_as(Q), gL))
    assert_close(apart, run_gelqf_vjp(machine, Q, L, gQ[:1].repeat(2, 1, 1), gL), 0.0)


@machines
@pytest.mark.parametrize("relative_to_largest", [False, True])
def test_the_first_row_that_depends_on_others_is_reported(
    machine: Machine, relative_to_largest: bool
) -> None:
    tolerance = 1e-10
    L = draw_matrices(50, 9, 9, torch.float64, machine).tril()

    def found() -> tuple[int, int] | None:
        def plan(cell: Tensor) -> tuple[object, ...]:
            return _gelqf_batch.plan_dependent_row_search(L, tolerance, relative_to_largest, cell)

        mine = machine.first_failure(plan, L)
        assert mine == _fallback.find_dependent_row(L, tolerance, relative_to_largest)
        return mine

    assert found() is None
    L[40, 8, 8] = torch.nan
    assert found() == (40, 0 if relative_to_largest else 8)
    L[33, 5, 5] = -1e-11
    assert found() == (33, 5)
    L[33, 0, 0] = 0.0
    assert found() == (33, 0)
    L[32, 1] = 0.0
    L[32, 1, :2] = 1e-12  # a small row, but not small beside its own diagonal entry
    assert found() == ((32, 1) if relative_to_largest else (33, 0))


@machines
def test_long_rows_that_depend(machine: Machine) -> None:
    L = draw_matrices(2, 70, 70, torch.float64, machine).tril()
    L[1, 68, 5] = 1e12  # the diagonal entry is negligible beside this one
    failure = machine.first_failure(
        lambda cell: _gelqf_batch.plan_dependent_row_search(L, 1e-10, False, cell), L
    )
    assert failure == _fallback.find_dependent_row(L, 1e-10, False) == (1, 68)


@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (3, 100), (64, 64), (96, 128)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("machine", MACHINES[-1:])
def test_all_sizes_on_a_device(machine: Machine, shape: tuple[int, int], dtype: torch.dtype) -> None:
    L, Q = factorise(draw_matrices(300, *shape, dtype, machine))
    gQ, gL = draw_cotangent(Q, 1), draw_cotangent(L, 2)
    expected = torch.empty_like(Q)
    _fallback.gelqf_vjp(expected, Q, L, gQ, gL)
    assert_close(run_gelqf_vjp(machine, Q, L, gQ, gL), expected, of_order(shape[1]))
