"""gesvd on CUDA at middle sizes: polar decompositions of batches, and eigenvalues of their factors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator

import pytest
import tolerances
import torch
from kernel_packages import in_torch as _fallback
from kernel_packages import on_cuda
from stand_ins import replace_gpu
from torch import Tensor

from lapgrad._formulas.gaps import find_row_signs
from lapgrad._formulas.gesvd import NOT_FINITE
from lapgrad._kernels import cuda as _cuda
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.large import polar as _polar

#: The module; the package has a function of this name.
routines = importlib.import_module("lapgrad._kernels.cuda.gesvd")

DTYPES = (torch.float64, torch.float32)


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LAPACK and NumPy behind the interfaces of cuSOLVER and cuBLAS, and Householder reflections for LQ."""
    monkeypatch.setattr(routines._gelqf, "gelqf", _fallback.gelqf)
    with replace_gpu():
        yield


def decompose(A: Tensor, vectors: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    k = min(m, n)
    S, U, V = A.new_empty(*batch, k), A.new_empty(*batch, k, m), A.new_empty(*batch, k, n)
    found = routines._decompose_batch(S, U if vectors else None, V if vectors else None, A)
    assert found is None
    return U, S, V


def check(A: Tensor, U: Tensor, S: Tensor, V: Tensor) -> None:
    """Check residual, orthogonality and values, relative to each item's largest entry; order, and signs."""
    n, k = max(A.shape[-2:]), min(A.shape[-2:])
    allowed = tolerances.SPECTRAL * n * torch.finfo(A.dtype).eps
    scale = A.abs().amax((-2, -1), keepdim=True).double()
    scale = scale.masked_fill(scale == 0, 1.0)
    u, s, v, a = (X.double() for X in (U, S, V, A))
    assert float(((u.mT @ (s[..., None] * v) - a) / scale).abs().max()) <= allowed
    for rows in (u, v):
        assert float((rows @ rows.mT - torch.eye(k, dtype=torch.float64)).abs().max()) <= allowed
    values = torch.linalg.svdvals(a)
    # Values err relative to the largest one, which for a matrix of ones is sqrt(m n) times the largest entry.
    bound = torch.maximum(scale.squeeze(-1), values[..., :1] / math.sqrt(n))
    assert float(((s - values) / bound).abs().max()) <= allowed
    assert (S[..., :-1] >= S[..., 1:]).all()
    assert (S >= 0).all()
    assert (find_row_signs(U) > 0).all()


def make_hard_matrices(m: int, n: int, dtype: torch.dtype) -> Tensor:
    """Zeros, equal values, all ranks, scales and conditions."""
    k = min(m, n)
    left, right = (torch.linalg.qr(torch.randn(side, k, dtype=torch.float64))[0] for side in (m, n))
    graded = (left * torch.logspace(0, -25, k, dtype=torch.float64)) @ right.mT
    two_sizes = (left * torch.where(torch.arange(k) < k // 2, 1.0, 1e-9)) @ right.mT
    normal = torch.randn(m, n, dtype=torch.float64)
    largest = torch.finfo(dtype).max
    return torch.stack(
        [
            normal,
            torch.zeros(m, n, dtype=torch.float64),
            torch.eye(m, n, dtype=torch.float64),
            torch.ones(m, n, dtype=torch.float64),
            torch.diag(torch.ones(max(m, n) - 1, dtype=torch.float64), 1)[:m, :n],
            graded,
            two_sizes,
            normal[:, :1] @ normal[:1],
            normal * (torch.arange(m) < m // 2)[:, None],
            normal * (largest / 1e3),
            normal * torch.finfo(dtype).tiny,
        ]
    ).to(dtype)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("m", "n"), [(24, 24), (17, 30), (40, 21), (6, 50), (1, 1), (1, 7)])
def test_hard_matrices(m: int, n: int, dtype: torch.dtype) -> None:
    A = make_hard_matrices(m, n, dtype)
    U, S, V = decompose(A)
    check(A[:-2], U[:-2], S[:-2], V[:-2])
    # In float64 the last two would leave the range of numbers in the check.
    for item, factor in ((-2, 1e3 / torch.finfo(dtype).max), (-1, 1.0 / torch.finfo(dtype).tiny)):
        check(A[item] * factor, U[item], S[item] * factor, V[item])
    _, alone, _ = decompose(A, vectors=False)
    units = tolerances.SPECTRAL * max(m, n) * torch.finfo(dtype).eps
    assert ((alone - S).abs() <= units * S[:, :1]).all()


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_matrices_are_not_left_to_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance from orthonormal rows that counts as rounding grows with the order."""
    monkeypatch.setattr(routines, "_repair", None)
    A = torch.randn(2, 150, 170, dtype=torch.float64).to(dtype)
    check(A, *decompose(A))


@pytest.mark.usefixtures("solver")
def test_parts_of_a_batch_and_several_leading_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(2, 3, 9, 12, dtype=torch.float64)
    whole = decompose(A)
    check(A, *whole)
    monkeypatch.setattr(_thresholds, "GESVD_BATCHED_WORKSPACE", 4 * 9 * 21 * 8 * 4)  # of four items
    for one, other in zip(whole, decompose(A), strict=True):
        assert torch.equal(one, other)
    by_columns = A.mT.contiguous().mT
    check(A, *decompose(by_columns))
    U, S, V = (A.new_empty(3, 2, *shape).transpose(0, 1) for shape in ((9, 9), (9,), (9, 12)))
    assert routines._decompose_batch(S, U, V, A) is None
    for one, other in zip(whole, (U, S, V), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("solver")
def test_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(4, 8, 8, dtype=torch.float64)
    A[2, 3, 4], A[3, 0, 0] = torch.inf, torch.nan
    S, U, V = A.new_empty(4, 8), torch.empty_like(A), torch.empty_like(A)
    assert routines._decompose_batch(S, U, V, A) == (2, NOT_FINITE)
    monkeypatch.setattr(routines, "may_read", lambda like: False)
    assert routines._decompose_batch(S, U, V, A) is None
    check(A[:2], U[:2], S[:2], V[:2])


@pytest.mark.usefixtures("solver")
def test_items_without_a_polar_factor_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    compute = _polar.compute_polar_factor

    def fail_on_one(L: Tensor) -> Tensor:
        P = compute(L)
        P[4] = 0.0
        return P

    monkeypatch.setattr(_polar, "compute_polar_factor", fail_on_one)
    check(A, *decompose(A))


def test_the_polynomials() -> None:
    """The polynomials have the properties that the number of steps and the errors are derived from."""
    x = torch.linspace(0, 1, 100001, dtype=torch.float64)
    a, b, c = _polar.GROW
    p = a * x + b * x**3 + c * x**5
    assert float(p.max()) <= 1 + 1e-7
    assert (p >= torch.minimum(0.97 * a * x, torch.tensor(_polar.LEAST - 1e-7))).all()
    assert abs(float(p[-1]) - 1) < 1e-7
    a, b, c = _polar.FINISH
    value = _polar.LEAST
    for _ in range(_polar.FINISHING_STEPS):
        value = a * value + b * value**3 + c * value**5
    assert abs(value - 1) <= torch.finfo(torch.float64).eps


def test_the_numbers_that_are_added() -> None:
    R = _polar.draw_numbers(60, 80, torch.empty(0, dtype=torch.float64))
    assert torch.equal(R, _polar.draw_numbers(60, 80, R))
    assert float(R.abs().max()) <= 1.0
    values = torch.linalg.svdvals(R)
    assert float(values[0]) < 0.7 * (math.sqrt(60) + math.sqrt(80))
    assert float(values[-1]) > 0.3 * (math.sqrt(80) - math.sqrt(60))


@pytest.mark.skipif(not (torch.cuda.is_available() and _cuda.is_available()), reason="no CUDA device")
@pytest.mark.parametrize(("m", "n"), [(130, 130), (140, 200), (600, 150)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_a_device(m: int, n: int, dtype: torch.dtype) -> None:
    A = make_hard_matrices(m, n, dtype)[:-2]
    k, items = min(m, n), len(A)
    S, U, V = (A.new_empty(items, *shape).cuda() for shape in ((k,), (k, m), (k, n)))
    assert on_cuda.gesvd(S, U, V, A.cuda()) is None
    check(A, U.cpu(), S.cpu(), V.cpu())
