"""syevd on CUDA: the kernel for small matrices, run on the CPU, and on a device where there is one."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import tolerances
import torch
from kernel_packages import on_cuda
from torch import Tensor

from lapgrad._formulas.gaps import fix_signs
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import syevd as _syevd_batch

Result = tuple[Tensor, Tensor | None, tuple[int, int] | None]
Run = Callable[..., Result]

#: Orders at the limits between kernels, and orders at which some lanes of a group have no column.
SIZES = [(n, torch.float64) for n in (1, 2, 3, 8, 9, 16, 20, 32, 33, 64)]
SIZES += [(n, torch.float32) for n in (16, 64)]


def run_emulated(A: Tensor, lower: bool = True, vectors: bool = True, reverse_order: bool = False) -> Result:
    """Run the kernels that ``_syevd_batch.syevd`` launches, emulated on the CPU."""
    n = A.shape[-1]
    source = A.reshape(-1, n, n)
    eigenvalues, U = A.new_full((len(source), n), 7.0), A.new_full((len(source), n, n), 7.0)
    reported = _items.create_status_cell(A)
    plan = _syevd_batch.plan_decomposition(eigenvalues, U if vectors else None, source, lower, reported)
    emulated.launch(*plan, reverse_order=reverse_order)
    failure = _items.read_first_failure(reported)
    return eigenvalues.view(A.shape[:-1]), U.view(A.shape) if vectors else None, failure


def run_on_device(A: Tensor, lower: bool = True, vectors: bool = True) -> Result:
    moved = torch.empty_strided(A.shape, A.stride(), dtype=A.dtype, device="cuda").copy_(A)
    eigenvalues, U = moved.new_empty(A.shape[:-1]), moved.new_empty(A.shape)
    failure = on_cuda.syevd(eigenvalues, U if vectors else None, moved, lower)
    return eigenvalues.cpu(), U.cpu() if vectors else None, failure


@pytest.fixture(params=places.make_places(run_emulated, run_on_device))
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def draw_symmetric(items: int, n: int, dtype: torch.dtype) -> Tensor:
    A = torch.randn(items, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return ((A + A.mT) / 2).to(dtype)


def check(A: Tensor, eigenvalues: Tensor, U: Tensor | None) -> None:
    """Check that U is orthogonal and diagonalises A, that values ascend and are right, and the sign rule."""
    assert U is not None
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    exact, size = A.double(), A.double().abs().amax((-2, -1), keepdim=True).clamp_min(1e-320)
    rows, allowed = U.double(), tolerances.SPECTRAL * n * eps
    identity = torch.eye(n, dtype=torch.float64)
    assert float((rows @ rows.mT - identity).abs().max()) <= allowed
    values = eigenvalues.double() / size[..., 0]
    assert float((rows @ (exact / size) @ rows.mT - torch.diag_embed(values)).abs().max()) <= allowed
    assert (eigenvalues.diff(dim=-1) >= 0).all()
    assert float((torch.linalg.eigvalsh(exact / size) - values).abs().max()) <= allowed
    signed = U.clone()
    fix_signs(signed)
    assert torch.equal(signed, U)


@pytest.mark.parametrize(("n", "dtype"), SIZES)
def test_random_matrices(run: Run, n: int, dtype: torch.dtype) -> None:
    A = draw_symmetric(5 if n <= 16 else 2, n, dtype)
    eigenvalues, U, failure = run(A)
    assert failure is None
    check(A, eigenvalues, U)


@pytest.mark.parametrize("n", [9, 33])
def test_order_of_threads_does_not_matter(n: int) -> None:
    A = draw_symmetric(3, n, torch.float64)
    one, other = run_emulated(A), run_emulated(A, reverse_order=True)
    assert torch.equal(one[0], other[0])
    assert one[1] is not None
    assert other[1] is not None
    assert torch.equal(one[1], other[1])


def list_hard_cases(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Matrices of one order on which something may go wrong."""
    Q = torch.linalg.qr(draw_symmetric(1, n, torch.float64)[0])[0]
    grade = torch.logspace(0, -30 if dtype == torch.float64 else -12, n, dtype=torch.float64)
    huge, tiny = (1e300, 1e-300) if dtype == torch.float64 else (1e37, 1e-36)
    least = torch.finfo(dtype).smallest_normal * 4
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)[torch.arange(n) % 2]
    cases = {
        "zero": torch.zeros(n, n),
        "identity": torch.eye(n),
        "diagonal": torch.diag(torch.arange(n, 0, -1.0)),
        "ones": torch.ones(n, n),
        "two eigenvalues": Q.mT @ torch.diag(sides) @ Q,
        "graded down": grade.sqrt()[:, None] * draw_symmetric(1, n, torch.float64)[0] * grade.sqrt(),
        "graded up": grade.sqrt().flip(0)[:, None]
        * draw_symmetric(1, n, torch.float64)[0]
        * grade.sqrt().flip(0),
        "graded spectrum": Q.mT @ torch.diag(grade) @ Q,
        "huge": draw_symmetric(1, n, torch.float64)[0] * huge / 4,
        "tiny": draw_symmetric(1, n, torch.float64)[0] * tiny,
        "least": draw_symmetric(1, n, torch.float64)[0] * least,
        "tridiagonal": torch.diag(torch.full((n - 1,), -1.0), 1)
        + torch.diag(torch.full((n - 1,), -1.0), -1)
        + torch.diag(torch.full((n,), 2.0)),
        "low rank": Q[:, :2] @ Q[:, :2].mT,
    }
    return {name: (A.double() + A.double().mT).div(2).to(dtype) for name, A in cases.items()}


@pytest.mark.parametrize(
    ("n", "dtype"), [(6, torch.float64), (16, torch.float64), (16, torch.float32), (40, torch.float64)]
)
def test_hard_cases(run: Run, n: int, dtype: torch.dtype) -> None:
    cases = list_hard_cases(n, dtype)
    A = torch.stack(list(cases.values()))
    eigenvalues, U, failure = run(A)
    assert failure is None
    check(A, eigenvalues, U)


def test_only_the_named_triangle_is_read(run: Run) -> None:
    A = draw_symmetric(4, 12, torch.float64)
    expected, rows, _ = run(A)
    wrong, triangle = torch.full_like(A, float("nan")), torch.ones(12, 12, dtype=torch.bool).tril()
    for lower in (True, False):
        mixed = torch.where(triangle, A, wrong) if lower else torch.where(triangle, wrong, A)
        mixed.diagonal(dim1=-2, dim2=-1).copy_(A.diagonal(dim1=-2, dim2=-1))
        eigenvalues, U, failure = run(mixed, lower=lower)
        assert failure is None
        assert torch.equal(eigenvalues, expected)
        torch.testing.assert_close(U, rows, rtol=0, atol=0)


def test_strides(run: Run) -> None:
    whole = draw_symmetric(12, 22, torch.float64).view(3, 4, 22, 22)
    expected, rows, _ = run(whole[:, ::2, 2::2, 2::2].contiguous())
    for A in (whole[:, ::2, 2::2, 2::2], whole[:, ::2, 2::2, 2::2].contiguous().mT):
        eigenvalues, U, failure = run(A)
        assert failure is None
        assert torch.equal(eigenvalues, expected)
        torch.testing.assert_close(U, rows, rtol=0, atol=0)


@pytest.mark.parametrize("n", [16, 40])
def test_values_alone(run: Run, n: int) -> None:
    A = draw_symmetric(3, n, torch.float64)
    eigenvalues, U, failure = run(A, vectors=False)
    assert U is None
    assert failure is None
    torch.testing.assert_close(eigenvalues, torch.linalg.eigvalsh(A), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [4, 16, 40])
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_first_item_that_is_not_finite(run: Run, n: int, what: float) -> None:
    A = draw_symmetric(11, n, torch.float64)
    A[9, 0, 0] = what
    A[7, 3, 1] = what
    eigenvalues, _, failure = run(A)
    assert failure == (7, -1)
    assert eigenvalues[7].isnan().all()
    assert eigenvalues[8].isfinite().all()


def test_eigenvalues_that_overflow(run: Run) -> None:
    A = torch.full((2, 8, 8), torch.finfo(torch.float32).max)
    A[0] = torch.eye(8)
    assert run(A)[2] == (1, -1)
