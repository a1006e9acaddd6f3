"""gesvd on CUDA by LQ and Jacobi: the kernels for sides up to 128, run on the CPU, and on a device."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import torch
from kernel_packages import on_cuda
from singular_values import check, draw_normal, list_hard_cases
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import gesvd_medium as _gesvd_medium

Result = tuple[Tensor, Tensor, Tensor, tuple[int, int] | None]
Run = Callable[..., Result]


def allocate_results(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    k = min(m, n)
    S, U, V = (A.new_full((*batch, *shape), 7.0) for shape in ((k,), (k, m), (k, n)))
    return S, U, V


def run_emulated(A: Tensor, vectors: bool = True, reverse_order: bool = False) -> Result:
    """Run the kernels that ``_gesvd_medium.gesvd`` launches, emulated on the CPU."""
    S, U, V = allocate_results(A)
    reported = _items.create_status_cell(A)
    plans = (
        _gesvd_medium.plan_decomposition(S, U, V, A, reported)
        if vectors
        else _gesvd_medium.plan_values(S, A, reported)
    )
    for plan in plans:
        emulated.launch(*plan, reverse_order=reverse_order)
    return S, U, V, _items.read_first_failure(reported)


def run_on_device(A: Tensor, vectors: bool = True) -> Result:
    moved = torch.empty_strided(A.shape, A.stride(), dtype=A.dtype, device="cuda").copy_(A)
    S, U, V = allocate_results(moved)
    failure = _gesvd_medium.gesvd(S, U if vectors else None, V if vectors else None, moved)
    return S.cpu(), U.cpu(), V.cpu(), failure


@pytest.fixture(params=places.make_places(run_emulated, run_on_device))
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


#: Every number of columns per lane; wide, tall and square; one row or eight rows in the last warp.
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [
        (65, 65, torch.float64), (70, 66, torch.float32), (20, 75, torch.float64), (66, 1, torch.float64),
        (128, 128, torch.float64), (14, 260, torch.float64), (129, 3, torch.float32),
    ],
)  # fmt: skip
def test_random_matrices(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    A = draw_normal(1, m, n, dtype)
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


@pytest.mark.parametrize(("m", "n"), [(67, 12), (12, 67)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hard_cases(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    A = torch.stack(list(list_hard_cases(m, n, dtype).values()))
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


def test_rows_that_are_graded_from_below(run: Run) -> None:
    """Rows whose sizes increase converge as fast as others, because the kernel sorts rows first."""
    A = draw_normal(2, 24, 70) * torch.logspace(-30, 0, 24, dtype=torch.float64)[:, None]
    A[1, 5:9] = A[1, 9:13]  # and a rank that is lower
    S, U, V, failure = run(A)
    assert failure is None
    check(A, S, U, V)


def test_small_singular_values_are_relatively_right(run: Run) -> None:
    n = 16
    grade = torch.logspace(0, -60, n, dtype=torch.float64)
    B = draw_normal(1, n, 66)
    A = B * grade.flip(0)[:, None]
    S, _, _, _ = run(A)
    # Rows of A are those of B, scaled: the product of the values is that of the scales and of B's values.
    expected = grade.log().sum() + torch.linalg.svdvals(B).log().sum()
    torch.testing.assert_close(S.log().sum(), expected, rtol=1e-13, atol=1e-13)


def test_order_of_threads_does_not_matter() -> None:
    A = draw_normal(1, 18, 70)
    A[0, 1] = A[0, 0]  # a zero singular value: its row of V must be completed
    for matrix in (A, A.mT):
        one, other = run_emulated(matrix), run_emulated(matrix, reverse_order=True)
        for result, expected in zip(one[:3], other[:3], strict=True):
            assert torch.equal(result, expected)


def test_strides(run: Run) -> None:
    whole = draw_normal(4, 40, 150)
    part = whole[::2, ::2, 2::2]
    expected = run(part.contiguous())
    for result, wanted in zip(run(part)[:3], expected[:3], strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)
    S, U, V, _ = run(part.mT)
    check(part.mT, S, U, V)


@pytest.mark.parametrize(("m", "n"), [(17, 80), (66, 9), (5, 150)])
def test_values_alone(run: Run, monkeypatch: pytest.MonkeyPatch, m: int, n: int) -> None:
    A = draw_normal(3, m, n)
    for work_space in (_thresholds.GESVD_WORKSPACE, 2 * m * n * 8):  # the batch as a whole, and in two parts
        monkeypatch.setattr(_thresholds, "GESVD_WORKSPACE", work_space)
        S, U, _, failure = run(A, vectors=False)
        assert failure is None
        assert (U == 7).all()
        torch.testing.assert_close(S, torch.linalg.svdvals(A), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("m", "n"), [(70, 8), (9, 65)])
@pytest.mark.parametrize("what", [float("nan"), float("-inf")])
def test_first_item_that_is_not_finite(run: Run, m: int, n: int, what: float) -> None:
    A = draw_normal(4, m, n)
    A[-1, 0, 0] = what
    A[-2, m - 1, n - 1] = what
    S, _, _, failure = run(A)
    assert failure == (2, 1)
    assert S[-2].isnan().all()
    assert S[0].isfinite().all()


def test_what_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def serves(*shape: int, memory: int = 227 * 1024) -> bool:
        monkeypatch.setattr(_items._stream, "get_block_memory", lambda _: memory)
        return _gesvd_medium.serves(torch.empty(shape, dtype=torch.float64))

    assert serves(2, 128, 128)
    assert serves(3, 1, 100, 70)
    assert not serves(2, 128, 128, memory=163 * 1024)
    assert serves(2, 70, 1000)
    assert not serves(2, 129, 130)
    assert serves(100, 100)
    assert serves(1, 100, 1000)
    assert serves(1, 100, 1025)
    assert not serves(0, 100, 100)
    assert not serves(2, 0, 70)


@pytest.mark.skipif(emulated.COMPILER is None, reason="no g++")
def test_batches_as_the_operator_hands_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators pass any leading dimensions and strides of results, and get the index of a failed item."""
    monkeypatch.setattr(_items._stream, "get_block_memory", lambda _: 227 * 1024)
    monkeypatch.setattr(_items._stream, "bind_context", lambda _: None)
    A = draw_normal(6, 9, 66).view(2, 3, 9, 66)
    S, U, V = allocate_results(A)
    apart = torch.empty(3, 2, 9, 66, dtype=A.dtype).transpose(0, 1)  # no single leading dimension
    with replace_gpu():
        assert on_cuda.gesvd(S, U, apart, A) is None
        check(A, S, U, apart)
        alone = S.new_empty(3, 2, 9).transpose(0, 1)
        assert on_cuda.gesvd(alone, None, None, A.mT) is None
        torch.testing.assert_close(alone, S, rtol=0, atol=1e-13)
        A[1, 1, 3, 3] = torch.nan
        assert on_cuda.gesvd(S, U, V, A) == (4, 1)
