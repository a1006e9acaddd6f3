"""Batches as operators pass them: any leading dimensions and strides; failures are read back."""

from __future__ import annotations

import emulated
import pytest
import torch
from kernel_packages import in_torch as _fallback
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import gelqf as _gelqf_batch
from lapgrad._kernels.cuda.small import potrf as _potrf_batch
from lapgrad._kernels.cuda.small import trmm as _trmm_batch
from lapgrad._kernels.cuda.small import trsm as _trsm_batch

BATCHES = [(), (1,), (2, 3)]
N = 4


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels emulated, on one stream of the CPU."""
    if emulated.COMPILER is None:
        pytest.skip("needs g++ to emulate kernels")
    monkeypatch.setattr(_launch, "launch", emulated.launch)
    monkeypatch.setattr(_stream, "is_capturing", lambda: False)
    monkeypatch.setattr(_stream, "get_current_stream", lambda device: 0)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)


def draw_normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def make_positive_definite(*batch: int) -> Tensor:
    root = draw_normal(*batch, N, N)
    return root @ root.mT + torch.eye(N)


def remove_common_stride(A: Tensor) -> Tensor:
    """Return the same matrices with leading dimensions that cannot be merged into one."""
    return torch.empty(3, 2, *A.shape[-2:], dtype=A.dtype).transpose(0, 1).copy_(A)


@pytest.mark.parametrize("batch", BATCHES)
def test_potrf(batch: tuple[int, ...]) -> None:
    A = make_positive_definite(*batch)
    assert _potrf_batch.serves(A)
    L, gA, expected = torch.empty_like(A), torch.empty_like(A), torch.empty_like(A)
    assert _potrf_batch.potrf(L, A, True, None) is None
    assert_close(L, torch.linalg.cholesky(A), of_order(N))
    _potrf_batch.potrf_vjp(gA, L, A, True, None)
    _fallback.potrf_vjp(expected, L, A, True, None)
    assert_close(gA, expected, of_order(N))


def test_failures_are_read_back_once_and_forgotten() -> None:
    A = make_positive_definite(2, 3)
    A[1, 0, 2, 2] = -1.0
    A[1, 2, 0, 0] = -1.0
    L = torch.empty_like(A)
    assert _potrf_batch.potrf(L, A, True, None) == (3, 3)
    assert torch.equal(L[1, 0], torch.eye(N).to(L))
    A = make_positive_definite(2, 3)
    assert _potrf_batch.potrf(L, A, True, None) is None
    A[0, 1, 3, 3] = torch.nan
    assert _potrf_batch.potrf(L, A, True, None) == (1, -4)


def test_nothing_is_read_back_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "is_capturing", lambda: True)
    A = -make_positive_definite(2)
    L = torch.empty_like(A)
    assert _potrf_batch.potrf(L, A, True, None) is None
    assert torch.equal(L, torch.eye(N).to(L).expand_as(L))
    monkeypatch.setattr(_stream, "is_capturing", lambda: False)
    assert _items.read_first_failure(_items.get_status_cell(A)) is None


def test_memory_without_a_common_stride() -> None:
    A = make_positive_definite(2, 3)
    expected = torch.linalg.cholesky(A)
    L, info = remove_common_stride(A), torch.empty(3, 2, dtype=torch.int32).mT
    assert _potrf_batch.potrf(torch.empty_like(A), L, True, None) is None
    assert _potrf_batch.potrf(L, L, True, info) is None
    assert_close(L, expected, of_order(N))
    assert not info.any()


@pytest.mark.parametrize("batch", BATCHES)
def test_gelqf(batch: tuple[int, ...]) -> None:
    A = draw_normal(*batch, 3, N)
    assert _gelqf_batch.serves(A)
    L, Q = A.new_empty(*batch, 3, 3), torch.empty_like(A)
    assert _gelqf_batch.gelqf(L, Q, A, True) is None
    assert_close(L @ Q, A, of_order(N))
    assert _gelqf_batch.find_dependent_row(L, 1e-15, False) is None
    gA, expected, gL = torch.empty_like(A), torch.empty_like(A), draw_normal(*batch, 3, 3)
    assert _gelqf_batch.serves_vjp(Q, L)
    _gelqf_batch.gelqf_vjp(gA, Q, L, A, gL)
    _fallback.gelqf_vjp(expected, Q, L, A, gL)
    assert_close(gA, expected, of_order(N))
    _gelqf_batch.gelqf_l_vjp(gA, A, L, gL)
    _fallback.gelqf_l_vjp(expected, A, L, gL)
    assert_close(gA, expected, of_order(N))
    A[..., 1, 2] = torch.inf
    assert _gelqf_batch.gelqf(L, None, A, True) == (0, 2)


@pytest.mark.parametrize("batch", BATCHES)
def test_trsm_and_trmm(batch: tuple[int, ...]) -> None:
    L, A = make_positive_definite(*batch), draw_normal(*batch, N, 3)
    assert _trsm_batch.serves(L, A)
    X, expected = torch.empty_like(A), torch.empty_like(A)
    assert _trsm_batch.trsm(X, L, A, lower=True, transpose=False, rightside=False) is None
    _fallback.trsm(expected, L, A, lower=True, transpose=False, rightside=False)
    assert_close(X, expected, of_order(N))
    _trmm_batch.trmm(X, L, A, lower=True, transpose=False, rightside=False)
    _fallback.trmm(expected, L, A, lower=True, transpose=False, rightside=False)
    assert_close(X, expected, of_order(N))
    L[..., 2, 2] = 0.0
    assert _trsm_batch.trsm(X, L, A, lower=True, transpose=False, rightside=False) == (0, 2)
    # In place, nothing is solved: the operand is as it was.
    kept = A.clone()
    assert _trsm_batch.trsm(A, L, A, lower=True, transpose=False, rightside=False) == (0, 2)
    assert torch.equal(A, kept)


def test_what_is_not_served() -> None:
    assert not _potrf_batch.serves(torch.zeros(2, 129, 129))
    assert not _potrf_batch.serves(torch.zeros(0, 4, 4))
    assert not _gelqf_batch.serves(torch.zeros(2, 4, 0))
    assert not _gelqf_batch.serves_vjp(torch.zeros(2, 3, 3), torch.zeros(2, 5, 3))
    assert not _gelqf_batch.serves_vjp(
        torch.zeros(2, 128, 128, dtype=torch.float64), torch.zeros(2, 128, 128, dtype=torch.float64)
    )
    assert not _trsm_batch.serves(torch.zeros(2, 65, 65), torch.zeros(2, 65, 3))
    assert _trsm_batch.serves(torch.zeros(9, 65, 65), torch.zeros(9, 65, 3))
