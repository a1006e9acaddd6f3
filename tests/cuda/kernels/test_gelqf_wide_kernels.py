"""gelqf on CUDA for wide matrices: the kernels that take chunks of columns, on the CPU, and on a device."""

from __future__ import annotations

from collections.abc import Callable

import emulated
import places
import pytest
import tolerances
import torch
from kernel_packages import on_cuda
from singular_values import draw_normal
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import gelqf_wide as _gelqf_wide

Run = Callable[..., tuple[Tensor, Tensor, tuple[int, int] | None]]


def run_emulated(A: Tensor, reverse_order: bool = False) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    """Run the kernels that ``_gelqf_wide.gelqf`` launches, emulated on the CPU."""
    L, Q, cell = A.new_full((len(A), A.shape[1], A.shape[1]), 7.0), A.clone(), _items.create_status_cell(A)
    for plan in _gelqf_wide.plan_factorisation(L, Q, cell):
        emulated.launch(*plan, reverse_order=reverse_order)
    return L, Q, _items.read_first_failure(cell)


def run_on_device(A: Tensor) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    moved = A.cuda()
    L, Q = moved.new_full((len(A), A.shape[1], A.shape[1]), 7.0), torch.empty_like(moved)
    failure = _gelqf_wide.gelqf(L, Q, moved)
    return L.cpu(), Q.cpu(), failure


@pytest.fixture(params=places.make_places(run_emulated, run_on_device))
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def check(A: Tensor, L: Tensor, Q: Tensor) -> None:
    eps, m = torch.finfo(A.dtype).eps, A.shape[-2]
    size = A.double().abs().amax((-2, -1), keepdim=True).clamp_min(1e-320)
    exact, rows, allowed = A.double() / size, Q.double(), tolerances.SPECTRAL * m * eps
    assert float((rows @ rows.mT - torch.eye(m)).abs().max()) <= allowed
    assert float(((L.double() / size) @ rows - exact).abs().max()) <= allowed
    assert (L.triu(1) == 0).all()
    assert (L.diagonal(dim1=-2, dim2=-1) >= 0).all()


#: Widths at which the last chunk of columns has one column or is full; groups of rows that are not full.
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [
        (1, 129, torch.float64), (7, 256, torch.float32), (18, 300, torch.float64), (70, 150, torch.float64),
        (128, 140, torch.float32),
    ],
)  # fmt: skip
def test_factors(run: Run, m: int, n: int, dtype: torch.dtype) -> None:
    A = draw_normal(2, m, n, dtype)
    L, Q, failure = run(A)
    assert failure is None
    check(A, L, Q)


def test_rows_that_depend_on_others(run: Run) -> None:
    """L Q = A also if rows are dependent, or are equal in the first chunk of columns and differ later."""
    A = draw_normal(5, 9, 290)
    A[0] = 0.0
    A[1, 3] = 2.0 * A[1, 2]
    A[2, :, :280] = 0.0
    A[3, :, :140] = A[3, :1, :140]
    A[4, :, 130:] = 0.0
    L, Q, failure = run(A)
    assert failure is None
    check(A, L, Q)


@pytest.mark.parametrize(
    ("dtype", "huge", "tiny"), [(torch.float64, 1e300, 1e-300), (torch.float32, 1e36, 1e-36)]
)
def test_range(run: Run, dtype: torch.dtype, huge: float, tiny: float) -> None:
    A = draw_normal(2, 6, 200) * torch.tensor([huge, tiny], dtype=torch.float64)[:, None, None]
    L, Q, failure = run(A.to(dtype))
    assert failure is None
    check(A.to(dtype), L, Q)


def test_order_of_threads_does_not_matter() -> None:
    A = draw_normal(2, 13, 270)
    for one, other in zip(run_emulated(A)[:2], run_emulated(A, reverse_order=True)[:2], strict=True):
        assert torch.equal(one, other)


def test_first_row_that_is_not_finite(run: Run) -> None:
    A = draw_normal(3, 5, 180)
    A[1, 3, 150] = torch.nan
    A[2, 0, 0] = torch.inf
    _, _, failure = run(A)
    assert failure == (1, 4)


@pytest.mark.skipif(emulated.COMPILER is None, reason="no g++")
def test_batches_as_the_operator_hands_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_items._stream, "get_block_memory", lambda _: 227 * 1024)
    monkeypatch.setattr(_items._stream, "bind_context", lambda _: None)
    A = draw_normal(6, 5, 140).view(2, 3, 5, 140)
    Q, L = (torch.empty(3, 2, 5, side, dtype=A.dtype).transpose(0, 1) for side in (140, 5))
    with replace_gpu():
        assert on_cuda.gelqf(L, Q, A, False) is None
        check(A, L, Q)
        alone = A.new_empty(2, 3, 5, 5)
        assert on_cuda.gelqf(alone, None, A.mT.contiguous().mT, False) is None
    torch.testing.assert_close(alone, L, rtol=0, atol=1e-13)
    assert not _gelqf_wide.serves(A[0])
    assert not _gelqf_wide.serves(A[..., :128])
