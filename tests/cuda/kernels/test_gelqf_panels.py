"""gelqf on CUDA by panels of rows: the kernels on the CPU, and on a device."""

from __future__ import annotations

from collections.abc import Callable

import places
import pytest
import tolerances
import torch
from singular_values import draw_normal
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import gelqf_panels as _gelqf_panels

Run = Callable[..., tuple[Tensor, Tensor, tuple[int, int] | None]]


def run_emulated(A: Tensor) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    if not is_available():
        pytest.skip("products of panels are launched by the compiled core")
    with replace_gpu():
        return run_on_device_of(A)


def run_on_device(A: Tensor) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    _stream.bind_context(0)
    L, Q, failure = run_on_device_of(A.cuda())
    return L.cpu(), Q.cpu(), failure


def run_on_device_of(A: Tensor) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    items, m, n = A.shape
    rank = min(m, n)
    L, Q = A.new_full((items, m, rank), torch.nan), A.new_full((items, rank, n), torch.nan)
    assert _gelqf_panels.serves(A)
    return L, Q, _gelqf_panels.gelqf(L, Q, A)


@pytest.fixture(params=places.make_places(run_emulated, run_on_device))
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def check(A: Tensor, L: Tensor, Q: Tensor) -> None:
    eps, rank = torch.finfo(A.dtype).eps, min(A.shape[-2:])
    size = A.double().abs().amax((-2, -1), keepdim=True).clamp_min(1e-320)
    exact, rows, allowed = A.double() / size, Q.double(), tolerances.SPECTRAL * rank * eps
    assert float((rows @ rows.mT - torch.eye(rank)).abs().max()) <= allowed
    assert float(((L.double() / size) @ rows - exact).abs().max()) <= allowed
    assert (L[:, :rank].triu(1) == 0).all()
    assert (L.diagonal(dim1=-2, dim2=-1) >= 0).all()


#: Panels of 32 rows and of 16, the last one full or not; fewer rows than a panel; more rows than columns.
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(40, 70, torch.float64), (64, 64, torch.float64), (70, 33, torch.float32), (20, 520, torch.float64)],
)
def test_factors(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    A = draw_normal(2, m, n, dtype)
    L, Q, failure = run(A)
    assert failure is None
    check(A, L, Q)


def test_rows_that_depend_on_others(run: Run) -> None:
    A = draw_normal(4, 40, 70)
    A[0] = 0.0
    A[1, 35] = 2.0 * A[1, 2]
    A[2, 1:] = A[2, :1]
    A[3, :, 30:] = 0.0
    L, Q, failure = run(A)
    assert failure is None
    check(A, L, Q)


@pytest.mark.parametrize(("huge", "tiny"), [(1e300, 1e-300)])
def test_range(run: Run, huge: float, tiny: float) -> None:
    A = draw_normal(2, 40, 70) * torch.tensor([huge, tiny], dtype=torch.float64)[:, None, None]
    L, Q, failure = run(A)
    assert failure is None
    check(A, L, Q)


def test_first_row_that_is_not_finite(run: Run) -> None:
    A = draw_normal(3, 40, 70)
    A[1, 37, 50] = torch.nan
    A[2, 0, 0] = torch.inf
    _, _, failure = run(A)
    assert failure == (1, 38)


@pytest.mark.skipif(not is_available(), reason="products of panels are launched by the compiled core")
def test_batches_as_the_operator_hands_them_over() -> None:
    A = draw_normal(4, 40, 70).view(2, 2, 40, 70)
    Q, L = (
        torch.empty(2, 2, 40, side, dtype=A.dtype).transpose(0, 1).mT.contiguous().mT for side in (70, 40)
    )
    with replace_gpu():
        assert _gelqf_panels.gelqf(L, Q, A.mT.contiguous().mT) is None
        alone = A.new_empty(2, 2, 40, 40)
        assert _gelqf_panels.gelqf(alone, None, A) is None
    check(A.flatten(0, 1), L.flatten(0, 1), Q.flatten(0, 1))
    torch.testing.assert_close(alone, L, rtol=0, atol=1e-13)
    assert not _gelqf_panels.serves(A.new_empty(2, 40, 1025))
