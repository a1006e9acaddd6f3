"""Products, triangles and centred data with one or few short sides, of about as many numbers as a vector has.

Operands lie in memory that is NaN elsewhere, so a kernel that reads or writes past a row is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from paths import set_core, take_path
from tolerances import assert_close, of_order
from torch import Tensor

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad._torch import lu as torch_lu
from lapgrad.linalg._centring import centre

pytestmark = pytest.mark.cpu

DTYPES = (torch.float32, torch.float64)


@pytest.fixture(params=[("default", isa) for isa in _cpu.ISA_VARIANTS] + [("two threads", "")])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    with take_path(*request.param):
        yield


def store_by_rows(A: Tensor) -> Tensor:
    return store_in_gaps(A)


def store_by_columns(A: Tensor) -> Tensor:
    return store_in_gaps(A.mT).mT


def store_in_gaps(A: Tensor) -> Tensor:
    """Return A with NaN between its rows in memory, and after the last one."""
    *batch, m, n = A.shape
    memory = A.new_full((*batch, m + 1, n + 3), torch.nan)
    return memory[..., :m, 1 : n + 1].copy_(A)


def store_densely_by_columns(A: Tensor) -> Tensor:
    return A.mT.contiguous().mT


Layout = Callable[[Tensor], Tensor]
LAYOUTS: tuple[Layout, ...] = (Tensor.contiguous, store_densely_by_columns, store_by_rows, store_by_columns)


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def multiply_exactly(A: Tensor, B: Tensor) -> Tensor:
    return (A.double() @ B.double()).to(A.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", [1, 2, 3, 4, 5, 8, 9])
def test_products_with_few_rows_or_columns(few: int, dtype: torch.dtype, path: None) -> None:
    for many, inner in ((1, 37), (3, 300), (7, 33), (15, 1), (16, 40), (33, 16), (70, 70), (130, 5)):
        A, B = draw(few, inner, dtype=dtype), draw(inner, many, dtype=dtype)
        expected, units = multiply_exactly(A, B), of_order(inner)
        C = draw(few, many, dtype=dtype)
        for a in LAYOUTS:
            for b in LAYOUTS:
                assert_close(lapgrad.gemm2(a(A), b(B)), expected, units)
                assert_close(lapgrad.gemm2(b(B.mT), a(A.mT)), expected.mT, units)
                assert_close(lapgrad.gemm(a(A), b(B), b(C), beta=2.0), expected + 2 * C, units)
                if few == many:
                    assert_close(lapgrad.gemmt(a(A), b(B)), expected.tril(), units)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [255, 257, 511, 700, 2622])
def test_long_sums_of_few_entries(inner: int, dtype: torch.dtype, path: None) -> None:
    """Longer than the packed panels of a product; by rows and by columns in memory, and in batches."""
    for n in (1, 2, 3, 4, 5):
        by_columns = draw(inner, n, dtype=dtype).mT
        for A in (draw(n, inner, dtype=dtype), by_columns, draw(37, n, inner, dtype=dtype)):
            expected, units = multiply_exactly(A, A.mT), of_order(inner)
            assert_close(lapgrad.syrk(A), expected, units)
            assert_close(lapgrad.gemm2(A, A, transpose_b=True), expected, units)
            assert_close(lapgrad.gemmt(A, A.mT.contiguous()), expected.tril(), units)
            total = lapgrad.gemm(A, A, expected.clone(), transpose_b=True, overwrite=True)
            assert_close(total, 2 * expected, units)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_at_any_place_of_a_sum_is_infinity(dtype: torch.dtype, path: None) -> None:
    ones = torch.ones(1, 37, dtype=dtype)
    for place in range(37):
        a = ones.clone()
        a[0, place] = torch.inf
        assert lapgrad.gemm2(a, ones.mT).item() == torch.inf
        assert lapgrad.gemm2(ones, a.mT).item() == torch.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5])
def test_gradients_of_outer_products(count: int, dtype: torch.dtype, path: None) -> None:
    """Products of matrices and vectors, of which the gradients are made, one by one and in a batch."""
    for columns in (1, 2, 4, 5):
        A = draw(count, 70, columns, dtype=dtype)
        G = draw(count, 70, 70, dtype=dtype)
        for layout in LAYOUTS:
            a = layout(A).requires_grad_()
            (gA,) = torch.autograd.grad(lapgrad.syrk(a), a, layout(G))
            assert_close(gA, multiply_exactly(G + G.mT, A), of_order(70))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32])
def test_triangles_with_any_number_of_columns(n: int, dtype: torch.dtype, path: None) -> None:
    L = (draw(n, n, dtype=dtype) / n).tril(-1) + torch.eye(n, dtype=dtype) * 1.5
    for m in (1, 7, 8, 16, 63, 64, 65, 200):
        A = draw(n, m, dtype=dtype)
        product, solution = multiply_exactly(L, A), torch_lu.solve(L.double(), A.double()).to(dtype)
        for lower in (True, False):
            triangle, operand = (L, A) if lower else (L.flip(0, 1), A.flip(0))
            for layout in LAYOUTS:
                B = lapgrad.trmm(layout(triangle), layout(operand), lower=lower)
                assert_close(B if lower else B.flip(0), product, of_order(n))
                X = lapgrad.trsm(layout(triangle), layout(operand), lower=lower)
                assert_close(X if lower else X.flip(0), solution, of_order(n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("overwrite", [lapgrad.trmm, lapgrad.trsm])
def test_overwriting_leaves_the_memory_around_alone(
    overwrite: Callable[..., Tensor], dtype: torch.dtype, path: None
) -> None:
    for n in (1, 3, 5, 8, 11):
        L = torch.eye(n, dtype=dtype)
        for m in (1, 5, 13, 70):
            memory = torch.full((n + 2, m + 2), torch.nan, dtype=dtype)
            inner = memory[1:-1, 1:-1]
            inner.fill_(1.0)
            overwrite(L, inner, overwrite=True)
            assert torch.equal(inner, torch.ones(n, m, dtype=dtype))
            assert int(memory.isnan().sum()) == memory.numel() - n * m


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(2, 2), (2, 3), (1, 7), (7, 1), (1, 13), (3, 3), (3, 5), (15, 1), (5, 5)])
def test_batches_of_items_that_are_no_whole_vectors(
    sides: tuple[int, int], dtype: torch.dtype, path: None
) -> None:
    n, m = sides
    for count in (2, 3, 4, 16, 17, 40):
        L = (draw(count, n, n, dtype=dtype) / n).tril(-1) + torch.eye(n, dtype=dtype) * 1.5
        # The batch in the middle of memory that must not change: items before it and after it are NaN.
        memory = torch.full((count + 4, n, m), torch.nan, dtype=dtype)
        A = memory[2:-2].copy_(draw(count, n, m, dtype=dtype))
        expected = multiply_exactly(L, A)
        assert_close(lapgrad.trmm(L, A), expected, of_order(n))
        assert_close(lapgrad.gemm2(L, A), expected, of_order(n))
        assert_close(lapgrad.gemm2(L[::2], A[::2]), expected[::2], of_order(n))
        B = draw(count, m, n, dtype=dtype)
        assert_close(lapgrad.gemm2(A, B), multiply_exactly(A, B), of_order(m))
        lapgrad.trmm(L, A, overwrite=True)
        assert_close(A, expected, of_order(n))
        assert int(memory.isnan().sum()) == 4 * n * m


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 20, 33])
def test_mirrored_triangles(n: int, dtype: torch.dtype, path: None) -> None:
    for count in (1, 2, 37):
        A = draw(2 * count, n, n, dtype=dtype)
        for operand in (A[:count], A[::2], A[:count].mT, A[0], A[:1].expand(count, n, n)):
            lower = operand.tril() + operand.tril(-1).mT
            assert torch.equal(lapgrad.copyltu(operand), lower)
            assert torch.equal(lapgrad.copyltu(operand.mT, lower=False), lower)
            leaf = operand.detach().clone().requires_grad_()
            (gA,) = torch.autograd.grad(lapgrad.copyltu(leaf), leaf, operand)
            assert_close(gA, operand.tril() + operand.mT.tril(-1))
        spaced = A.clone()[::2]
        expected = spaced.tril() + spaced.tril(-1).mT
        lapgrad.copyltu(spaced, overwrite=True)
        assert torch.equal(spaced, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_centred_observations(dtype: torch.dtype, path: None) -> None:
    short = ((1, 1), (2, 3), (5, 300), (63, 10), (64, 37))
    for n, d in (*short, (65, 64), (300, 3), (129, 257), (5000, 10), (700, 65)):
        X = draw(n, d, dtype=dtype) + 3
        exact = X.double().mean(0)
        for layout in (Tensor.contiguous, store_by_rows, store_densely_by_columns):
            mean, centred, unit = centre(layout(X))
            assert_close(mean, exact.to(dtype))
            assert_close(centred * unit, X - mean)
            largest = centred.abs().max()
            assert n == 1 or 1 <= largest < 2
            leaf = layout(X).requires_grad_()
            g_mean, g_centred = draw(d, dtype=dtype), draw(n, d, dtype=dtype)
            found = centre(leaf)
            (gX,) = torch.autograd.grad(found[:2], leaf, (g_mean, g_centred))
            G = g_centred / unit
            assert_close(gX, G - G.mean(0) + g_mean / n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_in_centred_observations(dtype: torch.dtype, path: None) -> None:
    for n, d in ((3, 5), (100, 3), (70, 37)):
        for i, j in ((0, 0), (n - 1, d - 1), (n // 2, d // 2)):
            for wrong in (torch.nan, torch.inf):
                X = draw(n, d, dtype=dtype)
                X[i, j] = wrong
                _, centred, _ = centre(X)
                assert not centred.isfinite().all()
                with pytest.raises(lapgrad.NonFiniteError):
                    lapgrad.linalg.pca(X)


@pytest.mark.parametrize("dtype", DTYPES)
def test_centred_observations_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    X = draw(20000, 7, dtype=dtype)
    found = []
    for threads in (1, 2):
        with set_core({}, threads):
            found.append(centre(X))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3000, 10), (3, 2000, 9), (40, 4000), (37, 60, 20), (5, 40, 65)])
def test_components_of_long_data_and_of_many_items(
    shape: tuple[int, ...], dtype: torch.dtype, path: None
) -> None:
    *batch, n, d = shape
    X = draw(*shape, dtype=dtype) * torch.linspace(3, 1, d, dtype=dtype)
    found = lapgrad.linalg.pca(X, k=2)
    centred = X.double() - X.double().mean(-2, keepdim=True)
    variances = torch.linalg.svdvals(centred)[..., :2].square() / (n - 1)
    units = of_order(max(n, d))
    assert_close(found.variance, variances.to(dtype), units)
    identity = torch.eye(2, dtype=dtype).expand(*batch, 2, 2)
    assert_close(found.components @ found.components.mT, identity, units)
    assert_close(found.scores, (centred @ found.components.double().mT).to(dtype), units)
    assert_close(found.scores.square().sum(-2) / (n - 1), found.variance, units)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 7, 17, 40])
def test_parts_of_batches_are_whole_vectors_of_items(count: int, dtype: torch.dtype, path: None) -> None:
    """Operators composed of several kernels run them on parts of a batch: each item is in one of them."""
    X, Y = draw(count, 56, 24, dtype=dtype), draw(count, 56, 9, dtype=dtype)
    Y = Y + X[..., :9]
    many, one = lapgrad.linalg.cca(X, Y), [lapgrad.linalg.cca(x, y) for x, y in zip(X, Y, strict=True)]
    assert_close(many.correlations, torch.stack([single.correlations for single in one]), of_order(24))
    S = X.mT @ X / 56 + torch.eye(24, dtype=dtype)
    roots = lapgrad.linalg.eigh_fn(S, "sqrt")
    assert_close(roots @ roots, S)
    leaf = S.clone().requires_grad_()
    (gS,) = torch.autograd.grad(lapgrad.linalg.inverse_psd(leaf), leaf, S)
    inverse = torch_lu.inv(S.double())
    assert_close(gS, (-inverse @ S.double() @ inverse).to(dtype), of_order(24))
