"""gelqf of batches of small matrices: the CUDA kernels give an LQ factorisation with LAPACK's signs."""

from __future__ import annotations

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import HOUSEHOLDER, assert_close
from torch import Tensor

from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch

#: Wide, square and tall shapes for each kernel; only a few kernels, because compiling one takes seconds.
SHAPES = [(1, 1), (4, 3), (2, 4), (4, 4), (7, 16), (5, 13), (17, 3), (20, 32), (32, 17), (32, 32), (61, 20)]
CASES = [(shape, torch.float64) for shape in SHAPES] + [((3, 4), torch.float32), ((32, 30), torch.float32)]
cases = pytest.mark.parametrize(
    ("shape", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch.")
)
machines = pytest.mark.parametrize("machine", MACHINES)


def draw_matrices(items: int, m: int, n: int, dtype: torch.dtype, machine: Machine) -> Tensor:
    drawn = torch.randn(items, m, n, generator=torch.Generator().manual_seed(m * n), dtype=torch.float64)
    return drawn.to(machine.device, dtype)


def run_gelqf(
    machine: Machine, A: Tensor, positive: bool = False, with_q: bool = True
) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
    items, m, n = A.shape
    rank = min(m, n)
    L = A.new_full((items, m, rank), torch.nan)
    Q = A.new_full((items, rank, n), torch.nan) if with_q else None
    failure = machine.first_failure(lambda cell: _gelqf_batch.plan_factorisation(L, Q, A, positive, cell), A)
    return L, Q, failure


def is_a_factorisation(L: Tensor, Q: Tensor | None, A: Tensor, units: float) -> None:
    assert Q is not None
    rank = Q.shape[-2]
    identity = torch.eye(rank, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], rank, rank)
    assert torch.equal(L, L.tril())
    assert_close(Q @ Q.mT, identity, units)
    assert_close(L @ Q, A, units)


@machines
@pytest.mark.parametrize("positive", [False, True])
@cases
def test_factors(machine: Machine, shape: tuple[int, int], dtype: torch.dtype, positive: bool) -> None:
    A = draw_matrices(3, *shape, dtype, machine)
    L, Q, failure = run_gelqf(machine, A, positive)
    assert failure is None
    is_a_factorisation(L, Q, A, HOUSEHOLDER * max(shape))
    expected, rows = torch.empty_like(L), torch.empty_like(Q)
    _fallback.gelqf(expected, rows, A, positive)
    assert torch.equal(L.diagonal(dim1=-2, dim2=-1) < 0, expected.diagonal(dim1=-2, dim2=-1) < 0)
    L_alone, _, _ = run_gelqf(machine, A, positive, with_q=False)
    assert torch.equal(L_alone, L)


@machines
@pytest.mark.parametrize("shape", [(4, 4), (20, 20)])
@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e306])
def test_entries_of_which_the_squares_are_no_numbers(
    machine: Machine, shape: tuple[int, int], scale: float
) -> None:
    A = draw_matrices(2, *shape, torch.float64, machine)
    A = A / A.abs().amax()
    L, Q, failure = run_gelqf(machine, A * scale)
    assert failure is None
    # Below the smallest normal number digits are lost before anything is computed.
    units = HOUSEHOLDER * shape[0] if scale > 1e-300 else 1e13
    # (By a division: on CUDA torch multiplies by the inverse of a number, which overflows.)
    is_a_factorisation(L / torch.full_like(L, scale), Q, A, units)
    assert Q is not None
    assert_close(Q @ Q.mT, torch.eye(shape[0]).to(Q).expand_as(Q @ Q.mT), HOUSEHOLDER * shape[0])


@machines
@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), torch.float64), ((32, 30), torch.float32)], ids=str)
def test_rows_that_fall_by_many_decades(machine: Machine, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Each row of L is accurate relative to its own size, although larger rows are mixed in on the way."""
    fall = torch.logspace(0, -250 if dtype is torch.float64 else -30, shape[0], dtype=torch.float64)
    unit = torch.exp2(fall.log2().round())[:, None].to(machine.device, dtype)  # no rounding
    A = draw_matrices(2, *shape, dtype, machine) * unit
    L, Q, failure = run_gelqf(machine, A)
    assert failure is None
    is_a_factorisation(L / unit, Q, A / unit, HOUSEHOLDER * max(shape))


@machines
@pytest.mark.parametrize("n", [4, 20])
def test_rows_that_need_no_reflection_and_rows_that_depend(machine: Machine, n: int) -> None:
    A = torch.zeros(4, n, n, dtype=torch.float64, device=machine.device)
    A[1] = torch.eye(n, dtype=torch.float64)
    A[2] = 1.0
    A[3] = torch.diag(torch.arange(1.0, n + 1))
    # This entry is too small to change Q or L, but LAPACK then makes a reflection, which changes a sign.
    A[3, :, -1] += 1e-200
    for positive in (False, True):
        L, Q, failure = run_gelqf(machine, A, positive)
        assert failure is None
        is_a_factorisation(L, Q, A, HOUSEHOLDER * n)
    L, Q, _ = run_gelqf(machine, A)
    assert Q is not None
    assert torch.equal(Q[:2], torch.eye(n).to(Q).expand(2, n, n))
    # On the CPU: what cuSOLVER does with a row that needs no reflection is not what LAPACK does.
    expected, rows = torch.empty_like(A.cpu()), torch.empty_like(A.cpu())
    _fallback.gelqf(expected, rows, A.cpu(), False)
    assert_close(L[3].cpu(), expected[3], HOUSEHOLDER * n)


@machines
@pytest.mark.parametrize("shape", [(4, 4), (20, 20)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_first_row_that_is_not_finite_is_reported(
    machine: Machine, shape: tuple[int, int], bad: float
) -> None:
    A = draw_matrices(5, *shape, torch.float64, machine)
    A[4, 0, 0] = bad
    A[2, 2, 3] = bad
    A[3, 1, 3] = 0.0
    expected, rows = torch.empty_like(A), torch.empty_like(A)
    assert _fallback.gelqf(expected, rows, A, False) == (2, 3)
    L, Q, failure = run_gelqf(machine, A)
    assert failure == (2, 3)
    assert Q is not None
    is_a_factorisation(L[[0, 1, 3]], Q[[0, 1, 3]], A[[0, 1, 3]], HOUSEHOLDER * shape[0])
    zeros = torch.zeros_like(A)
    zeros[1, 1, 2] = bad
    assert run_gelqf(machine, zeros)[2] == (1, 2)


@machines
@pytest.mark.parametrize("shape", [(3, 4), (32, 20)])
def test_any_strides(machine: Machine, shape: tuple[int, int]) -> None:
    m, n = shape
    A = draw_matrices(2, m, n, torch.float64, machine)
    expected, _, _ = run_gelqf(machine, A)
    apart = A.new_zeros(4, m + 1, 2 * n)[::2, 1:, ::2]
    apart.copy_(A)
    for source in (apart, A.mT.contiguous().mT):
        L, _, failure = run_gelqf(machine, source)
        assert failure is None
        assert torch.equal(L, expected)


@pytest.mark.parametrize(
    "shape", [(4, 4), (16, 16), (3, 9), (64, 64), (40, 128), (128, 33), (128, 128), (1, 100)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("machine", MACHINES[-1:])
def test_all_sizes_on_a_device(machine: Machine, shape: tuple[int, int], dtype: torch.dtype) -> None:
    A = draw_matrices(500, *shape, dtype, machine)
    for positive in (False, True):
        L, Q, failure = run_gelqf(machine, A, positive)
        assert failure is None
        is_a_factorisation(L, Q, A, HOUSEHOLDER * max(shape))
