"""Large matrices on CUDA, against the kernels in plain PyTorch; without a GPU, with stand-ins for libraries.

Blocks are made small, so that every case has several of them and a last one that is cut off.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from kernel_packages import in_torch as _fallback
from kernel_packages import on_cuda
from stand_ins import replace_gpu
from tolerances import INVERTED_BLOCKS, PROMISED_ON_CUDA, assert_close
from torch import Tensor

from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import stream as _stream

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="the algorithms are in the compiled core"),
]

BATCHES = ((), (2,))
ORDER = 300  # three blocks of 128, the last one cut off; leaves of 64, likewise


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REVERSE_BLOCK", "SOLVE_BLOCK", "INVERSE_BLOCK", "ORTHOGONALISE_BLOCK", "PRODUCT_CUT"):
        monkeypatch.setattr(_thresholds, name, 128)
    monkeypatch.setattr(_thresholds, "SOLVE_BY_BLOCKS_FROM", 128)
    monkeypatch.setattr(_thresholds, "SOLVE_BY_BLOCKS_COLUMNS", 8)
    monkeypatch.setattr(_thresholds, "POLAR_FROM", 128)
    monkeypatch.setattr(_thresholds, "GESVD_BATCHED_MOST", 0)
    monkeypatch.setattr(_thresholds, "POTRF_SMALL", 0)
    monkeypatch.setattr(_thresholds, "POTRF_ALONE", 0)
    monkeypatch.setattr(_thresholds, "GELQF_PANELS_ALONE", 0)
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    with replace_gpu():
        yield


@contextmanager
def forbid_fallback(name: str) -> Iterator[None]:
    """Fails where a kernel of CUDA hands its operands to that of plain PyTorch."""
    module = importlib.import_module(f"lapgrad._kernels.torch.{name}")
    with mock.patch.object(module, name, side_effect=AssertionError("the slow path was taken")):
        yield


def make_positive_definite(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(*shape, shape[-1], dtype=torch.float64, generator=generator)
    return X @ X.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)


def factor(*shape: int, lower: bool = True) -> Tensor:
    return torch.linalg.cholesky(make_positive_definite(*shape), upper=not lower)


def make_with_condition(m: int, n: int, condition: float, dtype: torch.dtype) -> Tensor:
    rank = min(m, n)
    U, V = (torch.linalg.qr(torch.randn(k, rank, dtype=torch.float64)).Q for k in (m, n))
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), rank, dtype=torch.float64)
    return ((U * values) @ V.mT).to(dtype)


def assert_near(found: Tensor, wanted: Tensor) -> None:
    assert_close(found, wanted, INVERTED_BLOCKS)


def run_both(
    name: str, results: int, shape: tuple[int, ...], *arguments: Any, **flags: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results of a routine's CUDA kernel, and of its kernel in plain PyTorch."""
    found, wanted = ([torch.full(shape, 7.0, dtype=torch.float64) for _ in range(results)] for _ in range(2))
    getattr(on_cuda, name)(*found, *arguments, **flags)
    getattr(_fallback, name)(*wanted, *arguments, **flags)
    return found, wanted


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
class TestCholesky:
    def test_potrf(self, batch: tuple[int, ...], lower: bool) -> None:
        A = make_positive_definite(*batch, ORDER)
        named = A.tril() if lower else A.triu()
        found, wanted = run_both("potrf", 1, A.shape, named, lower, None)
        assert_near(found[0], wanted[0])
        overwritten = named.clone()
        assert on_cuda.potrf(overwritten, overwritten, lower, None) is None
        assert torch.equal(overwritten, found[0])
        by_columns, spread = named.mT.contiguous().mT, named.repeat_interleave(2, -1)[..., ::2]
        for source in (by_columns, spread):
            L = torch.full_like(found[0], torch.nan)
            assert on_cuda.potrf(L, source, lower, None) is None
            assert torch.equal(L, found[0])

    def test_potrf_vjp(self, batch: tuple[int, ...], lower: bool) -> None:
        L = factor(*batch, ORDER, lower=lower)
        found, wanted = run_both("potrf_vjp", 1, L.shape, L, torch.randn_like(L), lower, None)
        assert_near(found[0], wanted[0])
        assert torch.equal(found[0], found[0].mT)

    def test_potri(self, batch: tuple[int, ...], lower: bool) -> None:
        L = factor(*batch, ORDER, lower=lower)
        found, wanted = run_both("potri", 1, L.shape, L, lower)
        assert_near(found[0], wanted[0])
        X, weight = torch.randn(*batch, ORDER, 3, dtype=L.dtype), torch.rand(batch, dtype=L.dtype)
        found, wanted = run_both("potri_update", 1, L.shape, L, X, weight, lower, 0.5, -0.25)
        assert_near(found[0], wanted[0])
        found, wanted = run_both("potri_vjp", 1, L.shape, L, torch.randn_like(L), lower)
        assert_near(found[0], wanted[0])

    @pytest.mark.parametrize("transpose", [True, False])
    @pytest.mark.parametrize("rightside", [True, False])
    def test_trsm_and_trmm(
        self, batch: tuple[int, ...], lower: bool, transpose: bool, rightside: bool
    ) -> None:
        L = factor(*batch, ORDER, lower=lower)
        L = L + (torch.randn_like(L).triu(1) if lower else torch.randn_like(L).tril(-1))
        shape = (*batch, 20, ORDER) if rightside else (*batch, ORDER, 20)
        A = torch.randn(*shape[:-2], shape[-1], shape[-2], dtype=L.dtype).mT
        for name in ("trsm", "trmm"):
            found, wanted = run_both(name, 1, shape, L, A, lower, transpose, rightside)
            assert_near(found[0], wanted[0])

    @pytest.mark.parametrize("transpose", [True, False])
    @pytest.mark.parametrize("rightside", [True, False])
    def test_trsm_of_few_columns(
        self, batch: tuple[int, ...], lower: bool, transpose: bool, rightside: bool
    ) -> None:
        """Few right-hand sides are left to cuBLAS's triangular solve."""
        L = factor(*batch, ORDER, lower=lower)
        A = torch.randn((*batch, 5, ORDER) if rightside else (*batch, ORDER, 5), dtype=L.dtype)
        with forbid_fallback("trsm"):
            found = torch.empty_like(A)
            assert on_cuda.trsm(found, L, A, lower, transpose, rightside) is None
        wanted = torch.empty_like(A)
        _fallback.trsm(wanted, L, A, lower, transpose, rightside)
        assert_near(found, wanted)

    @pytest.mark.parametrize("transpose", [True, False])
    @pytest.mark.parametrize("rightside", [True, False])
    def test_trsm_of_five_blocks(
        self,
        batch: tuple[int, ...],
        lower: bool,
        transpose: bool,
        rightside: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Out of place, A is not changed; in place, the result is the same."""
        monkeypatch.setattr(_thresholds, "SOLVE_BLOCK", 64)
        L = factor(*batch, ORDER, lower=lower)
        A = torch.randn((*batch, 20, ORDER) if rightside else (*batch, ORDER, 20), dtype=L.dtype)
        before = A.clone()
        found, wanted = run_both("trsm", 1, A.shape, L, A, lower, transpose, rightside)
        assert_near(found[0], wanted[0])
        assert torch.equal(A, before)
        assert on_cuda.trsm(A, L, A, lower, transpose, rightside) is None
        assert torch.equal(A, found[0])

    def test_products(self, batch: tuple[int, ...], lower: bool) -> None:
        A, B = (torch.randn(*batch, ORDER, 30, dtype=torch.float64) for _ in range(2))
        found, wanted = run_both(
            "gemmt",
            1,
            (*batch, ORDER, ORDER),
            A,
            B,
            lower=lower,
            transpose_a=False,
            transpose_b=True,
            alpha=0.5,
        )
        assert_near(found[0], wanted[0])
        found, wanted = run_both("syrk", 1, (*batch, ORDER, ORDER), A, False)
        assert_near(found[0], wanted[0])
        assert torch.equal(found[0], found[0].mT)
        square = torch.randn(*batch, ORDER, ORDER, dtype=torch.float64)
        found, wanted = run_both("copyltu", 1, square.shape, square, lower)
        assert torch.equal(found[0], wanted[0])


@pytest.mark.parametrize("lower", [True, False])
def test_failures_of_potrf_are_those_of_the_fallback(lower: bool) -> None:
    A = make_positive_definite(6, 150)
    A[1, 7, 7] = -5.0
    A[2, 9, 4] = A[2, 4, 9] = float("nan")
    A[3, 20, 20] = float("inf")
    A[4, 140, 140] = -5.0
    A[5, 100, 80] = A[5, 80, 100] = float("nan")
    codes = [torch.zeros(6, dtype=torch.int32) for _ in range(2)]
    results = [torch.empty_like(A) for _ in range(2)]
    on_cuda.potrf(results[0], A, lower, codes[0])
    _fallback.potrf(results[1], A, lower, codes[1])
    assert codes[0].tolist() == codes[1].tolist() == [0, 8, -10, -21, 141, -101]
    assert_near(*results)
    assert on_cuda.potrf(results[0], A, lower, None) == (1, 8)


def test_more_items_than_a_launch_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thresholds, "MOST_ITEMS", 1)
    A, square = make_positive_definite(2, 140), torch.empty(2, 140, 140, dtype=torch.float64)
    LU, pivots, d = torch.empty_like(A), torch.empty(2, 141, dtype=torch.int32), torch.empty(2, dtype=A.dtype)
    calls: dict[str, tuple[Any, ...]] = {
        "potrf": (square, A, True, None),
        "potrf_vjp": (square, A, A, True, None),
        "gelqf_vjp": (square, A, A, A, A),
        "gelqf_l_vjp": (square, A, A, A),
        "inverse": (square, A),
        "det": (d, LU, pivots[:, 1:], A),
        "gesv": (square, LU, pivots, A, A, False),
    }
    for name, arguments in calls.items():
        module = importlib.import_module(f"lapgrad._kernels.torch.{name.partition('_')[0]}")
        with mock.patch.object(module, name, return_value=None) as fallback:
            getattr(on_cuda, name)(*arguments)
        fallback.assert_called_once()


@pytest.mark.parametrize("lower", [True, False])
def test_one_matrix_is_factorised_with_few_launches(lower: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The general path, with more launches, is left for failures and for NaN in the triangle not read."""
    A = make_positive_definite(150)
    L, wanted = torch.full_like(A, torch.nan), torch.linalg.cholesky(A, upper=not lower)
    monkeypatch.setattr(_thresholds, "POTRF_ALONE", 150)
    with mock.patch.object(
        _cholesky, "factorise_upper", side_effect=AssertionError("the slow path was taken")
    ):
        assert on_cuda.potrf(L, A, lower, None) is None
    assert_near(L, wanted)
    other = torch.ones_like(A).triu(1) if lower else torch.ones_like(A).tril(-1)
    assert on_cuda.potrf(L, torch.where(other != 0, torch.nan, A), lower, None) is None
    assert_near(L, wanted)
    A[77, 77] = -1.0
    assert on_cuda.potrf(L, A, lower, None) == (0, 78)
    assert torch.equal(L, torch.eye(150).to(L))


def test_a_zero_pivot_is_found() -> None:
    L = factor(2, ORDER)
    L[1, 33, 33] = 0.0
    B = torch.randn(2, ORDER, 20, dtype=L.dtype)
    assert on_cuda.trsm(torch.empty_like(B), L, B, lower=True, transpose=False, rightside=False) == (1, 33)
    overwritten = B.clone()
    assert on_cuda.trsm(overwritten, L, overwritten, lower=True, transpose=False, rightside=False) == (1, 33)
    assert torch.equal(overwritten, B)
    assert on_cuda.potri(torch.empty_like(L), L, True) == (1, 33)


def test_a_zero_pivot_is_forgotten_when_it_was_told() -> None:
    L, B = factor(ORDER), torch.randn(ORDER, 20, dtype=torch.float64)
    singular = L.clone()
    singular[7, 7] = 0.0
    X = torch.empty_like(B)
    for _ in range(2):
        assert on_cuda.trsm(X, singular, B, lower=True, transpose=False, rightside=False) == (0, 7)
        assert on_cuda.trsm(X, L, B, lower=True, transpose=False, rightside=False) is None


def test_a_status_that_was_not_read_is_not_reported_later() -> None:
    """If a solve raises before the status is read, the zero pivot is not reported by the next solve."""
    L, B = factor(ORDER), torch.randn(ORDER, 20, dtype=torch.float64)
    singular = L.clone()
    singular[7, 7] = 0.0
    X = torch.empty_like(B)
    with (
        mock.patch.object(_device, "solve", side_effect=torch.OutOfMemoryError),
        pytest.raises(torch.OutOfMemoryError),
    ):
        on_cuda.trsm(X, singular, B, lower=True, transpose=False, rightside=False)
    assert on_cuda.trsm(X, L, B, lower=True, transpose=False, rightside=False) is None


def test_two_questions_at_a_time() -> None:
    L, singular = factor(ORDER), factor(ORDER)
    singular[7, 7] = 0.0
    first, second = (on_cuda.find_dependent_row_later(factor_, 1e-10, False) for factor_ in (singular, L))
    assert second() is None
    assert first() == (0, 7)


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e10, 1e14])
@pytest.mark.parametrize(("m", "n"), [(150, 150), (150, 400), (400, 150)])
def test_gelqf_is_as_accurate_as_householder(m: int, n: int, condition: float) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        A = make_with_condition(m, n, min(condition, 1e6) if dtype == torch.float32 else condition, dtype)
        rank, eps = min(m, n), torch.finfo(dtype).eps
        L, Q = torch.empty(m, rank, dtype=dtype), torch.empty(rank, n, dtype=dtype)
        with forbid_fallback("gelqf"):
            assert on_cuda.gelqf(L, Q, A, False) is None
        assert float((Q @ Q.mT - torch.eye(rank, dtype=dtype)).abs().max()) <= PROMISED_ON_CUDA * n * eps
        assert float((L @ Q - A).norm() / A.norm()) <= PROMISED_ON_CUDA * n * eps
        assert float(L[:rank].triu(1).abs().max()) == 0.0
        assert float(L.diagonal().min()) > 0.0


@pytest.mark.parametrize(
    ("dtype", "condition", "rounds"),
    [(torch.float32, 10.0, 1), (torch.float32, 1e6, 2), (torch.float64, 10.0, 2)],
)
def test_gelqf_of_float32_takes_one_round_where_that_does(
    dtype: torch.dtype, condition: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    factorise = mock.Mock(side_effect=_cholesky.factorise_upper)
    monkeypatch.setattr(_cholesky, "factorise_upper", factorise)
    A = make_with_condition(150, 400, condition, dtype)
    L, Q = torch.empty(150, 150, dtype=dtype), torch.empty(150, 400, dtype=dtype)
    assert on_cuda.gelqf(L, Q, A, False) is None
    assert factorise.call_count == rounds
    away = (Q.double() @ Q.double().mT - torch.eye(150)).norm()
    assert away <= PROMISED_ON_CUDA * 150**0.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("block", [64, 256], ids=["blocks", "one block"])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_gelqf_vjp(batch: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries above the diagonal of gL do not change the result."""
    monkeypatch.setattr(_thresholds, "SOLVE_BLOCK", block)
    A = torch.randn(*batch, 200, 300, dtype=torch.float64)
    Q, L = torch.linalg.qr(A.mT)
    Q, L = Q.mT.contiguous(), L.mT.contiguous()
    gQ, gL = torch.randn_like(Q), torch.randn_like(L)
    q_by_columns, l_by_columns = gQ.mT.contiguous().mT, gL.mT.contiguous().mT
    for cotangents in ((gQ, gL), (None, gL), (gQ, None), (q_by_columns, l_by_columns)):
        found, wanted = run_both("gelqf_vjp", 1, A.shape, Q, L, *cotangents)
        assert_near(found[0], wanted[0])
    spoilt = torch.where(torch.ones_like(gL, dtype=torch.bool).tril(), gL, torch.nan)
    found, wanted = run_both("gelqf_vjp", 1, A.shape, Q, L, gQ, spoilt)
    assert_near(found[0], wanted[0])


def test_gradients_of_many_items() -> None:
    """Inverses of diagonal blocks are merged by products of all items together, two of two leaves here."""
    L = factor(64, 80)
    found, wanted = run_both("potrf_vjp", 1, L.shape, L, torch.randn_like(L), True, None)
    assert_near(found[0], wanted[0])


@pytest.mark.parametrize("lower", [True, False])
def test_a_triangle_of_a_product(lower: bool) -> None:
    A, B = torch.randn(ORDER, 900, dtype=torch.float64), torch.randn(900, ORDER, dtype=torch.float64)
    C = torch.ones(ORDER, ORDER, dtype=torch.float64)
    wanted = 2.0 * (A @ B) + 0.5
    _device.multiply_triangle(C, A, B, lower, 2.0, 0.5, 64)
    if lower:
        assert_near(C.tril(), wanted.tril())
    else:
        assert_near(C.triu(), wanted.triu())


def test_where_float64_is_slow_others_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms that compute in float64 are not used on GPUs that are slow in float64."""
    monkeypatch.setattr(_stream, "has_fast_float64", lambda device: False)
    A = torch.randn(150, 1100)
    Q, L, S = torch.empty(150, 1100), torch.empty(150, 150), torch.empty(150)
    with pytest.raises(AssertionError, match="the slow path was taken"), forbid_fallback("gelqf"):
        on_cuda.gelqf(L, Q, A, False)
    with pytest.raises(AssertionError, match="the slow path was taken"), forbid_fallback("gesvd"):
        on_cuda.gesvd(S, L, Q, A)


def test_a_dependent_row_is_found() -> None:
    L = factor(2, 150)
    assert on_cuda.find_dependent_row(L, 1e-10, False) is None
    L[1, 40, 40] = 1e-14
    assert (
        on_cuda.find_dependent_row(L, 1e-10, False)
        == _fallback.find_dependent_row(L, 1e-10, False)
        == (1, 40)
    )
    assert on_cuda.find_dependent_row_later(L, 1e-10, False)() == (1, 40)
    assert (
        on_cuda.find_dependent_row_later(L, 1e-10, True)()
        == _fallback.find_dependent_row_later(L, 1e-10, True)()
    )
    assert on_cuda.find_dependent_row_later(L[:0], 1e-10, False)() is None


@pytest.mark.parametrize("condition", [1e2, 1e14])
@pytest.mark.parametrize(("m", "n"), [(150, 150), (150, 200), (200, 150)])
def test_gesvd_through_symmetric_eigenvalues(m: int, n: int, condition: float) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        A = make_with_condition(m, n, min(condition, 1e6) if dtype == torch.float32 else condition, dtype)
        rank, eps = min(m, n), torch.finfo(dtype).eps
        S, U, V = (torch.empty(*s, dtype=dtype) for s in ((rank,), (rank, m), (rank, n)))
        with forbid_fallback("gesvd"):
            assert on_cuda.gesvd(S, U, V, A) is None
        identity = torch.eye(rank, dtype=dtype)
        assert float((U @ U.mT - identity).abs().max()) <= PROMISED_ON_CUDA * n * eps
        assert float((V @ V.mT - identity).abs().max()) <= PROMISED_ON_CUDA * n * eps
        assert float((U.mT @ (S[:, None] * V) - A).norm()) <= PROMISED_ON_CUDA * n * eps
        assert float((S - torch.linalg.svdvals(A.double())).abs().max()) <= PROMISED_ON_CUDA * n * eps
        assert bool((S[:-1] >= S[1:]).all())
