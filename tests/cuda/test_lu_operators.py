"""inverse, det, slogdet and gesv as operators call them on CUDA, emulated: every route, and its failures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import emulated
import pytest
import torch
from kernel_packages import in_torch as _fallback
from kernel_packages import on_cuda
from stand_ins import replace_gpu
from tolerances import assert_close, of_order
from torch import Tensor

from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._torch import lu as _torch_lu

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="products of panels are launched by the compiled core"),
]


class Route(NamedTuple):
    """Matrices of one route: up to ``most`` by kernels of their own, above by panels, or by the library."""

    items: int
    n: int
    most: int = 128


#: A group of lanes, a block with and without a full last panel, panels of all items, one large matrix.
ROUTES = [Route(3, 1), Route(5, 6), Route(2, 40), Route(2, 48), Route(2, 40, 16), Route(1, 40, 16)]


@pytest.fixture(params=ROUTES, ids=lambda route: f"{route.items}x{route.n}-{route.most}")
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Route]:
    monkeypatch.setattr(_stream, "bind_context", lambda device: None)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)
    with replace_gpu(), mock.patch.object(_thresholds, "LU_SMALL", request.param.most):
        yield request.param


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def draw_regular(route: Route, dtype: torch.dtype = torch.float64) -> Tensor:
    """Matrices with condition numbers below ten, whose rows are exchanged in the elimination."""
    A = draw(route.items, route.n, route.n) / (2 * math.sqrt(route.n)) + torch.eye(route.n)
    return A.flip(-2).to(dtype)


def make_factors(A: Tensor, extra: int = 0) -> tuple[Tensor, Tensor]:
    kept = A.shape[-1] if extra or A.shape[-1] > 32 else 0
    LU = A.new_full((*A.shape[:-2], kept, kept), torch.nan)
    return LU, torch.zeros(*A.shape[:-2], kept + extra if kept else 0, dtype=torch.int32)


def test_determinants_and_their_gradients(route: Route) -> None:
    dtype = torch.float32 if route.n == 6 else torch.float64  # one is enough: compiling takes seconds
    A = draw_regular(route, dtype)
    units = 10 * of_order(route.n)
    exact, inverse = _torch_lu.det(A.double()), _torch_lu.inv(A.double())
    d, sign, logarithm, weight = (
        A.new_empty(len(A)),
        A.new_empty(len(A)),
        A.new_empty(len(A)),
        draw(len(A), dtype=dtype),
    )
    factors, gA = make_factors(A), torch.full_like(A, torch.nan)
    assert on_cuda.det(d, *factors, A) is None
    assert_close(d, exact.to(dtype), units)
    on_cuda.det_vjp(gA, A, *factors, weight)
    assert_close(gA, ((weight * exact)[:, None, None] * inverse.mT).to(dtype), units)
    factors = make_factors(A)
    assert on_cuda.slogdet(sign, logarithm, *factors, A) is None
    assert torch.equal(sign, exact.sign().to(dtype))
    assert_close(logarithm, exact.abs().log().to(dtype), units)
    assert on_cuda.slogdet_vjp(gA, A, *factors, weight) is None
    assert_close(gA, (weight[:, None, None] * inverse.mT).to(dtype), units)


def test_inverse_and_its_gradient(route: Route) -> None:
    A, gB = draw_regular(route), draw(route.items, route.n, route.n)
    B, gA = torch.full_like(A, torch.nan).mT, torch.full_like(A, torch.nan)
    assert on_cuda.inverse(B, A) is None
    exact = _torch_lu.inv(A)
    assert_close(B, exact, of_order(route.n))
    on_cuda.inverse_vjp(gA, B, gB)
    assert_close(gA, -exact.mT @ gB @ exact.mT, of_order(route.n))
    assert on_cuda.inverse(A, A) is None
    assert_close(A, exact, of_order(route.n))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("columns", [1, 5])
def test_solutions(route: Route, transpose: bool, columns: int) -> None:
    A, B = draw_regular(route), draw(route.items, columns, route.n).mT
    X, factors = torch.full_like(B, torch.nan), make_factors(A, extra=1)
    assert on_cuda.gesv(X, *factors, A, B, transpose) is None
    exact = _torch_lu.solve(A.mT if transpose else A, B)
    assert_close(X, exact, of_order(route.n))
    again = torch.full_like(B, torch.nan).contiguous()
    on_cuda.gesv_factored(again, *factors, B, not transpose)
    assert_close(again, _torch_lu.solve(A if transpose else A.mT, B), of_order(route.n))


def test_solutions_near_the_ends_of_the_range(route: Route) -> None:
    for size_of_a, size_of_b in ((1e300, 1e300), (1e-303, 1e-303), (1.0, 1e307), (1e-303, 1e-300)):
        A, B = draw_regular(route), draw(route.items, route.n, 2)
        X, factors = torch.full_like(B, torch.nan), make_factors(A, extra=1)
        A, exact = A * size_of_a, _torch_lu.solve(A, B) * (size_of_b / size_of_a)
        B = B * size_of_b
        assert on_cuda.gesv(X, *factors, A, B, False) is None
        assert_close(X, exact, 10 * of_order(route.n))


def test_singular_matrices(route: Route) -> None:
    """The last item has a zero column: only that column of the determinant's gradient is not zero."""
    A, (items, n) = draw_regular(route), (route.items, route.n)
    A[-1, :, n // 2] = 0.0
    d, sign, logarithm, weight = A.new_empty(items), A.new_empty(items), A.new_empty(items), draw(items)
    factors, gA, expected = make_factors(A), torch.full_like(A, torch.nan), torch.empty_like(A)
    assert on_cuda.det(d, *factors, A) is None
    assert d[-1] == 0
    assert on_cuda.slogdet(sign, logarithm, *make_factors(A), A) is None
    assert sign[-1] == 0
    assert logarithm[-1] == -math.inf
    on_cuda.det_vjp(gA, A, *factors, weight)
    own = make_factors(A)
    _fallback.det(d, *own, A)
    _fallback.det_vjp(expected, A, *own, weight)
    assert_close(gA, expected, 10 * of_order(n))
    failure = items - 1, n // 2 + 1
    assert on_cuda.slogdet_vjp(gA, A, *factors, weight) == failure
    weight[-1] = 0.0
    assert on_cuda.slogdet_vjp(gA, A, *factors, weight) is None
    assert (gA[-1] == 0).all()
    assert on_cuda.gesv(gA, *make_factors(A, extra=1), A, A, False) == failure
    assert on_cuda.inverse(gA, A) == failure
    assert torch.equal(gA[-1], torch.eye(n).to(gA))
    assert_close(gA[:-1], _torch_lu.inv(A[:-1]), of_order(n))


def test_entries_that_are_not_finite(route: Route) -> None:
    A, (items, n) = draw_regular(route), (route.items, route.n)
    # The library names the first row that became NaN, which need not be the one that had the NaN.
    row = n - 1 if n <= route.most else 0
    A[-1, row, 0] = torch.nan
    results, failure = [A.new_empty(items) for _ in range(2)], (items - 1, -row - 1)
    assert on_cuda.det(results[0], *make_factors(A), A) == failure
    assert on_cuda.slogdet(*results, *make_factors(A), A) == failure
    assert on_cuda.gesv(torch.empty_like(A), *make_factors(A, extra=1), A, A, False) == failure
    failure = on_cuda.inverse(torch.empty_like(A), A)
    assert failure is not None
    assert failure[0] == items - 1
    assert failure[1] < 0


def test_numbers_without_leading_bits(route: Route) -> None:
    """Columns of the smallest numbers are eliminated as others: they are not zero."""
    A = draw_regular(route)
    A[:, :, 0] = 5e-324 * torch.arange(1, route.n + 1, dtype=A.dtype)
    d = A.new_empty(route.items)
    sign, logarithm = torch.empty_like(d), torch.empty_like(d)
    assert on_cuda.slogdet(sign, logarithm, *make_factors(A), A) is None
    assert (sign.abs() == 1).all()
    assert logarithm.isfinite().all()


def test_leading_dimensions_and_memory_of_any_order(route: Route) -> None:
    A = torch.stack([draw_regular(route), draw_regular(route).mT]).transpose(0, 1)
    B, X = draw(2, route.items, route.n, 3).transpose(0, 1), torch.empty(2, route.items, route.n, 3).double()
    X = X.transpose(0, 1)
    assert on_cuda.gesv(X, *make_factors(A, extra=1), A, B, False) is None
    assert_close(X, _torch_lu.solve(A, B), of_order(route.n))
    inverse = torch.empty_like(A)
    assert on_cuda.inverse(inverse, A) is None
    assert_close(inverse, _torch_lu.inv(A), of_order(route.n))
