"""The check of spectral gradients on CUDA: the host waits for one only where values are equal or zero."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import emulated
import pytest
import torch
from stand_ins import replace_gpu
from torch import Tensor

import lapgrad
from lapgrad._formulas.gaps import choose_tolerance
from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import gesvd as _gesvd_batch
from lapgrad._kernels.cuda.small import syevd as _syevd_batch
from lapgrad._kernels.cuda.small import ties as _ties
from lapgrad._kernels.cuda.small.ties import TieCheck, are_distinct, note_distinct

#: Collected before a test replaces those of the CPU.
CUDA_KERNELS = _kernels.collect_kernels("lapgrad._kernels.torch") | _kernels.collect_kernels(
    "lapgrad._kernels.cuda"
)

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with replace_gpu():
        yield


def make_values(*items: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(items, dtype=dtype)


def report(check: TieCheck, item: int) -> None:
    """Report an item as a kernel does."""
    assert check.cell is not None
    check.cell.fill_((item << 32) + 1 + (1 << 31))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("last", "zeros", "found"),
    [
        ([-3.0, 1.0, 2.0], False, False),
        ([-3.0, 1.0, 1.01], False, True),
        ([-3.0, -2.99, 1.0], False, True),
        ([3.0, 1.0, 0.02], True, True),
        ([3.0, 1.0, 0.02], False, False),
        ([3.0, 1.0, 0.04], True, False),
        ([0.0, 0.0, 0.0], False, True),
    ],
)
def test_which_values_are_waited_for(last: list[float], zeros: bool, found: bool, dtype: torch.dtype) -> None:
    values = make_values([1.0, 2.0, 3.0], last, dtype=dtype)
    check = TieCheck(values, 0.01, zeros=zeros)
    with mock.patch.object(_items, "read_first_failure", return_value=(1, 1)) as read:
        assert check.read() == ((1, 1) if found else None)
    assert read.called == found


def test_reports_are_read_and_forgotten() -> None:
    values = make_values([1.0, 1.0], [1.0, 2.0])
    check = TieCheck(values, 0.01, zeros=False)
    report(check, 0)
    assert check.read() == (0, 1)
    assert TieCheck(values, 0.01, zeros=False).read() is None
    without_search = TieCheck(values[1:], 0.01, zeros=False, searches=False)
    report(without_search, 0)
    assert without_search.read() == (0, 1)


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    values = make_values([1.0, 1.0])
    monkeypatch.setattr(_stream, "is_capturing", lambda: True)
    check = TieCheck(values, 0.01, zeros=False)
    assert check.cell is None
    assert check.read() is None


def test_values_known_to_be_distinct_are_not_checked() -> None:
    values = make_values([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    usual = choose_tolerance(3, values.dtype, None)
    assert TieCheck(values, usual, zeros=False).cell is not None
    note_distinct(values)
    assert TieCheck(values, usual, zeros=False).cell is None
    assert TieCheck(values.clone(), usual, zeros=False).cell is not None
    assert TieCheck(values, 2.0 * usual, zeros=False).cell is not None
    for others in ([2.0, 2.0, 3.0], [3.0, 2.0, 0.0]):
        more = make_values(others)
        note_distinct(more)
        assert TieCheck(more, usual, zeros=False).cell is not None


def test_released_memory_is_forgotten() -> None:
    values = make_values([1.0, 2.0])
    note_distinct(values)
    for _ in range(200):
        note_distinct(make_values([1.0, 2.0]))
    assert are_distinct(values, 0.0)
    assert len(_ties._distinct._known) <= _ties._MANY_ENTRIES


def test_the_forward_pass_finds_distinct_values_for_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    routines = {"syevd": (lapgrad.syevd, 1), "gesvd": (lapgrad.gesvd, 1)}
    with mock.patch.dict(_kernels._CPU.fill(), CUDA_KERNELS, clear=True):
        for operator, place in routines.values():
            A = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64)).requires_grad_()
            assert are_distinct(operator(A)[place].detach(), 1e-15)
            assert not are_distinct(operator(A.detach())[place], 1e-15)


def test_small_kernels_of_many_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thresholds, "SPECTRAL_VJP_UNWAITED", 1)
    U = torch.linalg.qr(torch.randn(3, 5, 5, dtype=torch.float64))[0]
    values, g = torch.linspace(3, 1, 5, dtype=torch.float64).repeat(3, 1), torch.randn_like(U)
    gA = torch.empty_like(U)
    ascending = values.flip(-1).contiguous()
    assert _syevd_batch.syevd_vjp(gA, U, ascending, g, None, "mask", 1e-12) is None
    assert _gesvd_batch.gesvd_vjp(gA, U, values, U, g, None, None, "mask", 1e-12) is None
    values[2, 3] = values[2, 2]
    ascending = values.flip(-1).contiguous()
    assert _syevd_batch.syevd_vjp(gA, U, ascending, g, None, "mask", 1e-12) == (2, 1)
    marked = _gesvd_batch.gesvd_vjp(gA, U, values, U, g, None, None, "mask", 1e-12)
    assert marked is not None
    assert marked.tolist() == [False, False, True]
