"""Kernels: values against formulas written pair by pair, derivatives, shapes, sums and products, memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tolerances import assert_close
from torch import Tensor

import lapgrad
from lapgrad.models.kernels import RBF, Kernel, _blocks, covariance

#: A kernel of two-dimensional points, and the same function of one pair of them.
Case = tuple[Callable[[], Kernel], Callable[[Tensor, Tensor], Tensor]]


def scaled_distance(x: Tensor, z: Tensor, lengthscale: float | list[float]) -> Tensor:
    return torch.linalg.vector_norm((x - z) / torch.as_tensor(lengthscale, dtype=x.dtype))


CASES: dict[str, Case] = {
    "RBF": (
        lambda: RBF(0.7, 1.3),
        lambda x, z: 1.3 * torch.exp(-0.5 * scaled_distance(x, z, 0.7) ** 2),
    ),
    "RBF, ARD": (
        lambda: RBF([0.7, 2.0], 1.3),
        lambda x, z: 1.3 * torch.exp(-0.5 * scaled_distance(x, z, [0.7, 2.0]) ** 2),
    ),
    "RBF, active_dims": (
        lambda: RBF(0.7, active_dims=[1]),
        lambda x, z: torch.exp(-0.5 * scaled_distance(x[1:], z[1:], 0.7) ** 2),
    ),
}


def points(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def pair_by_pair(function: Callable[[Tensor, Tensor], Tensor], X: Tensor, Z: Tensor) -> Tensor:
    return torch.stack([torch.stack([function(x, z) for z in Z]) for x in X])


@pytest.fixture(params=[False, True], ids=["whole", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices in one piece, as they are, and in blocks, as large ones are."""
    if request.param:
        monkeypatch.setitem(_blocks._ELEMENTS, "cpu", 14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("blocks")
def test_values(case: str, dtype: torch.dtype) -> None:
    make, function = CASES[case]
    kernel, X, Z = make(), points(7, 2, dtype=dtype), points(4, 2, dtype=dtype, seed=1)
    assert_close(kernel(X, Z).detach(), pair_by_pair(function, X, Z))
    K = kernel(X)
    expected = pair_by_pair(function, X, X)
    assert_close(K.detach(), expected)
    assert torch.equal(K, K.mT)
    assert_close(kernel.diag(X).detach(), expected.diagonal())
    assert torch.equal(kernel.diag(X), K.diagonal())


def parameters_of(kernel: Kernel) -> list[Tensor]:
    for parameter in kernel.parameters():
        parameter.requires_grad_()
    return list(kernel.parameters())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("blocks")
def test_derivatives(case: str) -> None:
    kernel = CASES[case][0]()
    X, Z = points(5, 2).requires_grad_(), points(3, 2, seed=1).requires_grad_()
    parameters = parameters_of(kernel)

    def between(X: Tensor, Z: Tensor, *parameters: Tensor) -> Tensor:
        return kernel(X, Z)

    def within(X: Tensor, *parameters: Tensor) -> Tensor:
        return kernel(X)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(between, (X, Z, *parameters))
        assert check(within, (X, *parameters))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("noise", [torch.tensor(0.3), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])])
def test_covariance_of_observations(noise: Tensor) -> None:
    kernel, X, noise = RBF(0.7), points(5, 2).requires_grad_(), noise.double().requires_grad_()
    expected = kernel(X) + torch.diag(noise.expand(5))
    A = covariance(kernel, X, noise)
    assert_close(A, expected)
    weights = points(5, 5)
    wanted = [X, noise, *kernel.parameters()]
    found = torch.autograd.grad((A * weights).sum(), wanted)
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), wanted), strict=True):
        assert_close(one, other)


def test_batches_broadcast() -> None:
    kernel, X, Z = RBF(0.7), points(3, 1, 5, 2), points(2, 4, 2, seed=1)
    K = kernel(X, Z)
    assert K.shape == (3, 2, 5, 4)
    assert_close(K[1, 1].detach(), kernel(X[1, 0], Z[1]).detach())
    assert kernel.diag(X).shape == (3, 1, 5)
    assert kernel(X).shape == (3, 1, 5, 5)


def test_no_points() -> None:
    kernel = RBF(0.7)
    assert kernel(points(0, 2), points(3, 2)).shape == (0, 3)
    assert kernel(points(0, 2)).shape == (0, 0)
    assert kernel.diag(points(0, 2)).shape == (0,)


def test_vectors_are_points_of_one_dimension() -> None:
    assert_close(RBF(0.7)(points(5)), RBF(0.7)(points(5)[:, None]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RBF()(torch.zeros(3, dtype=torch.int64)), "RBF: X has dtype torch.int64"),
        (lambda: RBF()(points(3, 2), points(3, 2, dtype=torch.float32)), "same dtype"),
        (lambda: RBF()(points(3, 2), points(3, 4)), "same number of columns"),
        (lambda: RBF([1.0, 2.0, 3.0])(points(3, 2)), "3 lengthscales for points of 2 dimensions"),
        (lambda: RBF(active_dims=[2])(points(3, 2)), "active_dims"),
        (lambda: RBF(-1.0), "lengthscale must be positive"),
        (lambda: RBF(math.nan), "lengthscale must be positive"),
        (lambda: RBF(torch.ones(2, 2)), "must be a scalar or of shape"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(lapgrad.LapgradError, match=message):
        call()
