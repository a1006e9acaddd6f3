"""potrf of batches of small matrices: the CUDA kernels against torch and the fallback's formula."""

from __future__ import annotations

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.small import potrf as _potrf_batch

#: Orders on both sides of each limit between kernels; fewer in float32, because compiling takes seconds.
CASES = [(n, torch.float64) for n in (1, 3, 4, 9, 16, 33, 61)] + [(n, torch.float32) for n in (13, 48)]
cases = pytest.mark.parametrize(("n", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
machines = pytest.mark.parametrize("machine", MACHINES)


def make_positive_definite(items: int, n: int, dtype: torch.dtype, machine: Machine) -> Tensor:
    root = torch.randn(items, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (root @ root.mT / n + torch.eye(n)).to(machine.device, dtype)


def run_potrf(
    machine: Machine, A: Tensor, lower: bool = True, info: Tensor | None = None, L: Tensor | None = None
) -> tuple[Tensor, tuple[int, int] | None]:
    L = torch.full_like(A, torch.nan) if L is None else L
    failure = machine.first_failure(lambda cell: _potrf_batch.plan_factorisation(L, A, lower, info, cell), A)
    return L, failure


def run_potrf_vjp(machine: Machine, L: Tensor, gL: Tensor, lower: bool, info: Tensor | None = None) -> Tensor:
    gA = torch.full_like(L, torch.nan)
    machine.launch(_potrf_batch.plan_vjp(gA, L, gL, lower, info))
    return gA


def spoil_other_triangle(A: Tensor, lower: bool) -> Tensor:
    below = torch.ones_like(A).tril().bool()
    return torch.where(below if lower else below.mT, A, torch.nan)


@machines
@pytest.mark.parametrize("lower", [True, False])
@cases
def test_factor(machine: Machine, n: int, dtype: torch.dtype, lower: bool) -> None:
    A = make_positive_definite(3, n, dtype, machine)
    L, failure = run_potrf(machine, spoil_other_triangle(A, lower), lower)
    assert failure is None
    assert_close(L, torch.linalg.cholesky(A, upper=not lower), of_order(n))


@machines
@pytest.mark.parametrize("lower", [True, False])
@cases
def test_gradient(machine: Machine, n: int, dtype: torch.dtype, lower: bool) -> None:
    L = torch.linalg.cholesky(make_positive_definite(3, n, dtype, machine), upper=not lower)
    gL = torch.randn(L.shape, generator=torch.Generator().manual_seed(1)).to(L)
    expected = torch.empty_like(L)
    _fallback.potrf_vjp(expected, L, gL, lower, None)
    spoilt = spoil_other_triangle
    gA = run_potrf_vjp(machine, spoilt(L, lower), spoilt(gL, lower), lower)
    assert torch.equal(gA, gA.mT)
    assert_close(gA, expected, of_order(n))


@machines
@pytest.mark.parametrize("n", [4, 16, 48])
def test_items_that_fail_are_reported_and_have_the_identity_and_no_gradient(machine: Machine, n: int) -> None:
    A = make_positive_definite(6, n, torch.float64, machine)
    last = n - 1
    A[1, last, last] = -1.0
    A[2, last, 0] = torch.nan
    A[3, 2, 2] = 0.0
    A[3, last, 1] = torch.inf  # after the minor that fails
    A[4, 1, 1] = torch.inf
    expected = torch.empty_like(A)
    codes = torch.empty(6, dtype=torch.int32, device=A.device)
    _fallback.potrf(expected, A, True, codes)
    assert codes.tolist() == [0, n, -n, 3, -2, 0]

    info = torch.full_like(codes, 99)
    L, failure = run_potrf(machine, A, info=info)
    assert torch.equal(info, codes)
    assert failure == (1, n)
    assert_close(L, expected, of_order(n))

    gA = run_potrf_vjp(machine, L, torch.ones_like(L), True, info)
    _fallback.potrf_vjp(expected, L, torch.ones_like(L), True, info)
    assert_close(gA, expected, of_order(n))
    assert not gA[1:5].any()


@machines
@pytest.mark.parametrize("n", [4, 48])
def test_any_strides_and_in_place(machine: Machine, n: int) -> None:
    A = make_positive_definite(2, n, torch.float64, machine)
    expected = torch.linalg.cholesky(A)
    apart = torch.zeros(2, n + 1, 2 * n + 3, dtype=A.dtype, device=A.device)[:, :n, 1 : 2 * n : 2]
    apart.copy_(A)
    turned = A.mT.contiguous().mT
    for source in (apart, turned, A.flip(0)[[1, 0]]):
        L, failure = run_potrf(machine, source)
        assert failure is None
        assert_close(L, expected, of_order(n))
    L, failure = run_potrf(machine, apart, L=apart)
    assert failure is None
    assert_close(L, expected, of_order(n))


@pytest.mark.parametrize("n", [1, 7, 32, 33, 64, 80, 100, 128])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("machine", MACHINES[-1:])
def test_all_sizes_on_a_device(machine: Machine, n: int, dtype: torch.dtype) -> None:
    A = make_positive_definite(2000, n, dtype, machine)
    L, failure = run_potrf(machine, A)
    assert failure is None
    assert_close(L, torch.linalg.cholesky(A), of_order(n))
    expected = torch.empty_like(L)
    _fallback.potrf_vjp(expected, L, A, True, None)
    assert_close(run_potrf_vjp(machine, L, A, True), expected, of_order(n))
