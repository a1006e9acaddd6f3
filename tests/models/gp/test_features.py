"""Features: which products and frequencies they are, and which kernel they stand for."""

from __future__ import annotations

import itertools
import math

import pytest
import tolerances
import torch

from lapgrad import OptionError, ShapeError
from lapgrad.models import PolynomialFeatures, RandomFourierFeatures


@pytest.mark.parametrize(("d", "degree"), [(1, 1), (1, 15), (3, 1), (3, 4), (4, 2)])
def test_polynomial_has_every_product_once(d, degree):
    X = torch.randn(5, d, dtype=torch.float64)
    found = PolynomialFeatures(degree)(X)
    expected = [
        X[:, list(factors)].prod(1)
        for length in range(1, degree + 1)
        for factors in itertools.combinations_with_replacement(range(d), length)
    ]
    assert found.shape == (5, math.comb(d + degree, degree) - 1)
    tolerances.assert_close(found, torch.stack(expected, 1))


def test_polynomial_without_interactions_has_powers_alone():
    X = torch.randn(2, 5, 3, dtype=torch.float64)
    found = PolynomialFeatures(3, interactions=False)(X)
    tolerances.assert_close(found, torch.cat([X, X**2, X**3], -1))


KERNELS = {
    "rbf": lambda r: torch.exp(-0.5 * r**2),
    "matern12": lambda r: torch.exp(-r),
    "matern32": lambda r: (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 / 3 * r**2) * torch.exp(-(5**0.5) * r),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_fourier_features_approximate_their_kernel(kernel):
    X = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lengthscale = torch.tensor([0.4, 1.5], dtype=torch.float64)
    with torch.no_grad():
        Phi = RandomFourierFeatures(2, 20000, lengthscale, kernel, generator=0)(X)
    expected = KERNELS[kernel](torch.cdist(X / lengthscale, X / lengthscale))
    # Three standard deviations of a mean of 20000 cosines; one is at most 1 / sqrt(2 count).
    assert (Phi @ Phi.mT - expected).abs().max() < 3 / math.sqrt(2 * 20000)
    tolerances.assert_close(Phi.square().sum(1), torch.ones(6, dtype=torch.float64))


def test_fourier_features_are_reproducible_and_learn_their_lengthscale():
    features, same = (RandomFourierFeatures(1, 7, 0.3, generator=5) for _ in range(2))
    assert torch.equal(features.frequencies, same.frequencies)
    assert not torch.equal(features.frequencies, RandomFourierFeatures(1, 7, 0.3, generator=6).frequencies)
    features(torch.ones(2, 1)).sum().backward()
    assert features.raw_lengthscale.grad.abs() > 0
    assert set(features.hyperparameters()) == {"lengthscale"}


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: PolynomialFeatures(0), OptionError, "degree must be at least 1, got 0"),
        (lambda: RandomFourierFeatures(0, 3), OptionError, "dimension and count must be positive"),
        (lambda: RandomFourierFeatures(2, 3, kernel="cosine"), OptionError, "kernel must be one of 'rbf'"),
        (
            lambda: RandomFourierFeatures(2, 3, [1.0, 1.0, 1.0]),
            ShapeError,
            "must be a number or have 2 entries",
        ),
        (lambda: RandomFourierFeatures(2, 3)(torch.ones(4, 3)), ShapeError, "must have 2 columns"),
    ],
)
def test_mistakes_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
