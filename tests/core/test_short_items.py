"""Long batches of tiny matrices, whose items are shorter than a vector of lanes."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_close
from torch import Tensor

import lapgrad
from lapgrad._kernels.table import is_core_in_use, lookup
from lapgrad._torch import lu as torch_lu

pytestmark = pytest.mark.cpu

#: Fewer items than any vector has lanes, whole vectors, and a rest.
COUNTS = (2, 3, 16, 77)


def make_batch(count: int, rows: int, columns: int, dtype: torch.dtype, *, is_spaced: bool = False) -> Tensor:
    """Random matrices; with `is_spaced` every second item of a batch, so that the batch has gaps."""
    A = torch.randn(count * (2 if is_spaced else 1), rows, columns, dtype=dtype)
    return A[::2] if is_spaced else A


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_spaced", [False, True])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9])
def test_diagonals(n: int, count: int, is_spaced: bool, dtype: torch.dtype) -> None:
    A = make_batch(count, n, n, dtype, is_spaced=is_spaced)
    d = A.diagonal(dim1=-2, dim2=-1)
    assert torch.equal(lapgrad.extractdiag(A), d)
    assert torch.equal(lapgrad.extractdiag(A.mT), d)
    packed = make_batch(count, 1, n, dtype, is_spaced=is_spaced)[:, 0]
    assert torch.equal(lapgrad.makediag(packed), torch.diag_embed(packed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_spaced", [False, True])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("sides", [(1, 1), (1, 7), (2, 1), (3, 3), (5, 2)])
def test_products_and_solves(sides: tuple[int, int], count: int, is_spaced: bool, dtype: torch.dtype) -> None:
    n, m = sides
    B = make_batch(count, n, m, dtype, is_spaced=is_spaced)
    S = make_batch(count, n, n, dtype, is_spaced=is_spaced)
    A = S @ S.mT + torch.eye(n, dtype=dtype)
    assert_close(lapgrad.gemm2(A, B), A @ B)
    assert_close(lapgrad.syrk(B), B @ B.mT)
    results = []
    for solve in (lapgrad.linalg.solve_psd, torch_lu.solve):
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        X = solve(a, b)
        gA, gB = torch.autograd.grad((X * B).sum(), (a, b))
        results.append((X.detach(), (gA + gA.mT) / 2, gB))
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2])
def test_logarithms(n: int, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    near_one = 1 + limits.eps * torch.arange(-8.0, 9.0, dtype=dtype)
    powers = torch.logspace(-30, 30, 61, dtype=dtype)
    around_roots = 2.0 ** torch.linspace(-3, 3, 241, dtype=dtype)
    ends = torch.tensor([limits.tiny, limits.max, limits.smallest_normal / 8, 0.0, torch.inf, torch.nan])
    d = torch.cat((near_one, powers, -around_roots, ends.to(dtype)))
    A = torch.diag_embed(d[:, None].expand(-1, n).contiguous())
    expected = n * d.double().abs().log()
    found = lapgrad.sumlogdiag(A)
    finite = expected.isfinite()
    assert torch.equal(found[~finite].nan_to_num(), expected[~finite].to(dtype).nan_to_num())
    # One entry errs by a few units in its last place, however small; a product of several, relative to one.
    allowed = 4 * limits.eps * (expected[finite].abs() + n - 1)
    assert ((found[finite].double() - expected[finite]).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pivoted_factors_of_numbers(dtype: torch.dtype) -> None:
    a = torch.tensor([4.0, 0.0, -1.0, 2.25, 1e-30], dtype=dtype)
    found = lapgrad.pstrf(a[:, None, None])
    assert torch.equal(found.L[:, 0, 0], a.clamp_min(0).sqrt())
    assert found.rank.tolist() == [1, 0, 0, 1, 1]
    limited = lapgrad.pstrf(a[:, None, None], tol=0.5)
    assert limited.rank.tolist() == [1, 0, 0, 1, 0]
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(lapgrad.NonFiniteError):
            lapgrad.pstrf(torch.tensor([1.0, wrong], dtype=dtype)[:, None, None])


def test_determinants_of_numbers() -> None:
    a = torch.randn(33, 1, 1, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(33, dtype=torch.float64)
    (gA,) = torch.autograd.grad(lapgrad.det(a), a, weights)
    assert torch.equal(gA[:, 0, 0], weights)


def test_large_results_have_their_memory() -> None:
    """Results that get huge pages have all their entries, and do not overlap."""
    d = torch.randn(1100, dtype=torch.float64)
    first, second = lapgrad.makediag(d), lapgrad.makediag(-d)
    assert torch.equal(first, torch.diag_embed(d))
    assert torch.equal(first, -second)
    tracked = d.clone().requires_grad_()
    assert torch.equal(lapgrad.makediag(tracked).detach(), first)


@pytest.mark.skipif(not is_core_in_use(), reason="needs the core")
@pytest.mark.parametrize("n", [1, 3])
def test_sums_of_products_that_share_their_first_item(n: int) -> None:
    """A B' + D E' is computed as one product only if D is B and E is A in every item of the batch."""
    A, B = make_batch(5, n, 2, torch.float64), make_batch(5, n, 2, torch.float64)
    E, C = A[:1].expand(A.shape), A.new_empty(5, n, n)
    lookup("gemmt_sum", A)(C, A, B, B, E, lower=True, symmetric=True, alpha=1.0)
    assert_close(C.tril(), (A @ B.mT + B @ E.mT).tril())
    assert torch.equal(C, C.mT)
