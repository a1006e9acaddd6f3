"""gesvd on CUDA: the kernel for small matrices, run on the CPU, and on a device where there is one."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import tolerances
import torch
from singular_values import check, draw_normal, list_hard_cases
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._torch import lu as torch_lu

Result = tuple[Tensor, Tensor | None, Tensor | None, tuple[int, int] | None]
Run = Callable[..., Result]

#: (m, n, items): every kind of kernel; wide, tall and square; an even and an odd number of rows (Jacobi
#: rotates pairs of rows, and an odd number is completed by a row of zeros).
SHAPES = [
    (1, 1, 3), (2, 2, 9), (5, 8, 3), (8, 7, 3), (4, 50, 2), (16, 16, 3), (13, 15, 2), (50, 9, 2),
    (17, 17, 1), (32, 32, 1), (60, 18, 1), (35, 36, 1),
]  # fmt: skip


def run_emulated(A: Tensor, vectors: bool = True, reverse_order: bool = False) -> Result:
    """Run the kernels that ``_gesvd_batch.gesvd`` launches, emulated on the CPU."""
    *batch, m, n = A.shape
    k, source = min(m, n), A.reshape(-1, m, n)
    S, U, V = (A.new_full((len(source), *shape), 7.0) for shape in ((k,), (k, m), (k, n)))
    reported = _items.create_status_cell(A)
    plan = _gesvd_batch.plan_decomposition(
        S, U if vectors else None, V if vectors else None, source, reported
    )
    emulated.launch(*plan, reverse_order=reverse_order)
    U, V = U.view(*batch, k, m), V.view(*batch, k, n)
    return (
        S.view(*batch, k),
        U if vectors else None,
        V if vectors else None,
        _items.read_first_failure(reported),
    )


def run_on_device(A: Tensor, vectors: bool = True) -> Result:
    *batch, m, n = A.shape
    k = min(m, n)
    moved = torch.empty_strided(A.shape, A.stride(), dtype=A.dtype, device="cuda").copy_(A)
    S, U, V = (moved.new_empty((*batch, *shape)) for shape in ((k,), (k, m), (k, n)))
    failure = _gesvd_batch.gesvd(S, U if vectors else None, V if vectors else None, moved)
    return S.cpu(), U.cpu() if vectors else None, V.cpu() if vectors else None, failure


@pytest.fixture(params=places.make_places(run_emulated, run_on_device))
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


@pytest.mark.parametrize(("m", "n", "items"), SHAPES)
def test_random_matrices(run: Run, m: int, n: int, items: int) -> None:
    A = draw_normal(items, m, n)
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


def test_single_precision(run: Run) -> None:
    A = draw_normal(3, 16, 16, torch.float32)
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


@pytest.mark.parametrize(("m", "n"), [(7, 6), (16, 16), (17, 18)])
def test_order_of_threads_does_not_matter(m: int, n: int) -> None:
    A = draw_normal(1 if m > 16 else 3, m, n)
    A[0, 1] = A[0, 0]  # a zero singular value: its row of V must be completed
    for one, other in zip(run_emulated(A)[:3], run_emulated(A, reverse_order=True)[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(8, 8, torch.float64), (7, 16, torch.float64), (16, 7, torch.float32), (16, 16, torch.float32)],
)
def test_hard_cases(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    A = torch.stack(list(list_hard_cases(m, n, dtype).values()))
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


def test_zeros_in_a_team_of_several_warps(run: Run) -> None:
    A = draw_normal(1, 18, 20)
    A[0, 3:9] = 0.0
    S, U, V, failure = run(A)
    assert failure is None
    assert (S[0, -6:] == 0).all()
    check(A, S, U, V)


@pytest.mark.parametrize(("dtype", "deep"), [(torch.float64, -100), (torch.float32, -15)])
def test_small_singular_values_are_relatively_right(run: Run, dtype: torch.dtype, deep: int) -> None:
    n = 12
    grade = torch.logspace(0, deep, n, dtype=torch.float64)
    A = (grade[:, None] * draw_normal(1, n, n)).to(dtype)
    S, _, _, failure = run(A)
    assert failure is None
    # A = D B with B well conditioned: the values are those of D B to a few eps each. In exact arithmetic the
    # scaled matrix has the same ones up to the scale, so a part of it tells what the last is.
    expected = (
        torch_lu.inv(A.double()) if dtype == torch.float32 else torch_lu.inv(draw_normal(1, n, n)) / grade
    )
    last = 1.0 / torch.linalg.matrix_norm(expected, 2)
    error = (S[:, -1].double() / last - 1).abs().max() / torch.finfo(dtype).eps
    assert float(error) <= tolerances.DEFAULT


def test_strides(run: Run) -> None:
    whole = draw_normal(12, 14, 22).view(3, 4, 14, 22)
    part = whole[:, ::2, ::2, 2::2]
    expected = run(part.contiguous())
    for result, wanted in zip(run(part)[:3], expected[:3], strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)
    S, U, V, _ = run(part.mT)
    check(part.mT, S, U, V)
    torch.testing.assert_close(S, expected[0], rtol=0, atol=0)


@pytest.mark.parametrize(("m", "n"), [(16, 15), (9, 12)])
def test_values_alone(run: Run, m: int, n: int) -> None:
    A = draw_normal(3, m, n)
    S, U, V, failure = run(A, vectors=False)
    assert U is None
    assert V is None
    assert failure is None
    torch.testing.assert_close(S, torch.linalg.svdvals(A), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("m", "n"), [(6, 6), (14, 16), (17, 17)])
@pytest.mark.parametrize("what", [float("nan"), float("-inf")])
def test_first_item_that_is_not_finite(run: Run, m: int, n: int, what: float) -> None:
    A = draw_normal(3 if m > 16 else 11, m, n)
    A[-1, 0, 0] = what
    A[-2, m - 1, n - 1] = what
    S, _, _, failure = run(A)
    assert failure == (len(A) - 2, 1)
    assert S[-2].isnan().all()
    assert S[0].isfinite().all()


def test_one_matrix_does_not_change_its_neighbours(run: Run) -> None:
    """Matrices that share a warp take different numbers of sweeps."""
    A = draw_normal(8, 8, 8)
    A[3] = torch.eye(8, dtype=torch.float64)
    A[5] *= torch.logspace(0, -12, 8, dtype=torch.float64)
    together = run(A)
    for item in (0, 3, 5):
        alone = run(A[item : item + 1])
        for result, expected in zip(together[:3], alone[:3], strict=True):
            assert result is not None
            torch.testing.assert_close(result[item : item + 1], expected, rtol=0, atol=0)
