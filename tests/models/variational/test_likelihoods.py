"""Likelihoods: densities are normalised, and integrals over f agree with sums over a fine grid."""

from __future__ import annotations

import math

import pytest
import torch
from device import DEVICE
from tolerances import NARROW_INTEGRAL, SMOOTH_INTEGRAL, assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import likelihoods
from lapgrad.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)

#: The likelihood, an observation, and how precise its expectation and its predictive density are.
ELEMENTWISE: dict[str, tuple[Likelihood, float, float, float]] = {
    "bernoulli": (Bernoulli(), 1.0, SMOOTH_INTEGRAL, SMOOTH_INTEGRAL),
    "poisson": (Poisson(), 3.0, SMOOTH_INTEGRAL, NARROW_INTEGRAL),
    "student_t": (StudentT(df=5.0, scale=0.8), 0.3, NARROW_INTEGRAL, NARROW_INTEGRAL),
    "gaussian": (Gaussian(noise_var=0.5), 0.3, SMOOTH_INTEGRAL, SMOOTH_INTEGRAL),
}


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def on_device(likelihood: Likelihood) -> Likelihood:
    return likelihood.to(device=DEVICE, dtype=torch.float64)


def fine_grid(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """4001 values of f between -10 and 10 deviations, and the weights of the trapezoidal rule."""
    z = torch.linspace(-10, 10, 4001, dtype=torch.float64, device=DEVICE)
    weights = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return mean + variance.sqrt() * z.view(-1, 1, 1), weights.view(-1, 1)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_integrals_over_the_function(name: str) -> None:
    likelihood, value, of_expectation, of_density = ELEMENTWISE[name]
    likelihood = on_device(likelihood)
    mean, variance = 0.7 * draw(6, 1), 0.1 + 0.3 * torch.rand(6, 1, dtype=torch.float64, device=DEVICE)
    y = torch.full((6, 1), value, dtype=torch.float64, device=DEVICE)
    f, weights = fine_grid(mean, variance)
    with torch.no_grad():
        each = likelihood.log_prob(f, y)
        expectation = likelihood.expected_log_prob(mean, variance, y, None)
        density = likelihood.predictive_log_prob(mean, variance, y)
    assert_close(expectation, (weights * each).sum(0), of_expectation)
    assert_close(density, (weights * each.exp()).sum(0).log(), of_density)


def test_densities_are_normalised() -> None:
    f = draw(3, 1)
    with torch.no_grad():
        for likelihood, values in (
            (Bernoulli(), torch.arange(2.0)),
            (Poisson(), torch.arange(200.0)),
        ):
            y = values.to(f).view(-1, 1, 1)
            total = sum(on_device(likelihood).log_prob(f, each).exp() for each in y)
            assert_close(total, torch.ones_like(f[:, 0]))
        categorical = on_device(Categorical(4))
        g = draw(3, 4)
        total = sum(categorical.log_prob(g, torch.full((3, 1), c, device=DEVICE)).exp() for c in range(4))
        assert_close(total, torch.ones_like(g[:, 0]))
        z = torch.linspace(-400, 400, 800001, dtype=torch.float64, device=DEVICE)[:, None]
        for likelihood, functions in (
            (StudentT(6.0, 0.5), 1),
            (Gaussian(0.4), 1),
            (HeteroscedasticGaussian(), 2),
        ):
            density = on_device(likelihood).log_prob(draw(1, functions), z).exp()
            assert abs(float(density.sum()) * 1e-3 - 1) < 1e-9


def test_heteroscedastic_integrals() -> None:
    likelihood = on_device(HeteroscedasticGaussian())
    mean, variance = 0.5 * draw(5, 2), 0.1 + 0.2 * torch.rand(5, 2, dtype=torch.float64, device=DEVICE)
    y = draw(5, 1)
    z = torch.linspace(-8, 8, 401, dtype=torch.float64, device=DEVICE)
    weights = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    both = torch.stack(torch.meshgrid(z, z, indexing="ij"), -1).view(-1, 1, 2)
    joint = (weights[:, None] * weights).view(-1, 1)
    each = likelihood.log_prob(mean + variance.sqrt() * both, y)
    assert_close(
        likelihood.expected_log_prob(mean, variance, y, None), (joint * each).sum(0), SMOOTH_INTEGRAL
    )
    expected = (joint * each.exp()).sum(0).log()
    assert_close(likelihood.predictive_log_prob(mean, variance, y), expected, NARROW_INTEGRAL)
    noise = (joint * (mean + variance.sqrt() * both)[..., 1].exp()).sum(0)
    assert_close(
        likelihood.predict_observations(mean, variance).variance[:, 0],
        variance[:, 0] + noise,
        SMOOTH_INTEGRAL,
    )


@pytest.mark.parametrize("name", [*ELEMENTWISE, "heteroscedastic"])
def test_draws_have_the_predicted_moments(name: str) -> None:
    likelihood = on_device(HeteroscedasticGaussian() if name == "heteroscedastic" else ELEMENTWISE[name][0])
    k = 2 if name == "heteroscedastic" else 1
    mean = torch.full((1, k), 0.3, dtype=torch.float64, device=DEVICE)
    variance = torch.full_like(mean, 0.2)
    count = 40000
    source = torch.Generator(DEVICE).manual_seed(0)
    with torch.no_grad():
        predicted = likelihood.predict_observations(mean, variance)
        f = mean + variance.sqrt() * torch.randn(
            count, 1, k, dtype=torch.float64, device=DEVICE, generator=source
        )
        y = likelihood.draw_observations(f, source)
    # Five standard errors.
    error = 5 * float(predicted.variance.sqrt()) / math.sqrt(count)
    assert abs(float(y.mean() - predicted.mean)) < error
    assert abs(float(y.var() / predicted.variance) - 1) < 0.1


def test_categorical_agrees_with_bernoulli_for_two_classes() -> None:
    """The difference of two functions has the sum of their variances."""
    mean, variance = draw(4, 2), torch.rand(4, 2, dtype=torch.float64, device=DEVICE)
    two = on_device(Categorical(2)).predict_observations(mean, variance).mean
    one = on_device(Bernoulli()).predict_observations(
        (mean[:, 1] - mean[:, 0])[:, None], variance.sum(-1, keepdim=True)
    )
    assert (two[:, 1:] - one.mean).abs().max() < 5e-3  # 256 points
    assert_close(two.sum(-1), torch.ones_like(two[:, 0]))
    y = torch.ones(4, 1, device=DEVICE)
    normals = torch.randn(20000, 4, 2, dtype=torch.float64, device=DEVICE)
    by_samples = Categorical(2).expected_log_prob(mean, variance, y, normals)
    exact = Bernoulli().expected_log_prob(
        (mean[:, 1] - mean[:, 0])[:, None], variance.sum(-1, keepdim=True), y.double(), None
    )
    assert (by_samples - exact).abs().max() < 0.02


@pytest.mark.parametrize(
    ("likelihood", "bad", "wanted"),
    [
        (Bernoulli(), 0.5, "0 or 1"),
        (Poisson(), -1.0, "whole numbers >= 0"),
        (Poisson(), 1.5, "whole numbers >= 0"),
        (Categorical(3), 3.0, "whole numbers from 0 to 2"),
    ],
)
def test_what_cannot_be_observed(likelihood: Likelihood, bad: float, wanted: str) -> None:
    y = torch.tensor([[1.0], [bad]])
    with pytest.raises(lapgrad.OptionError, match=rf"Model: y must be {wanted}; not so in rows \[1\]"):
        likelihood.check_observations("Model", y)


def test_options() -> None:
    with pytest.raises(lapgrad.OptionError, match="classes must be"):
        Categorical(1)
    with pytest.raises(lapgrad.OptionError, match="df must be more than 2"):
        StudentT(df=2.0)
    with pytest.raises(lapgrad.OptionError, match="noise_var must be positive"):
        HeteroscedasticGaussian(0.0)
    with pytest.raises(lapgrad.FileFormatError, match="likelihood Cauchy is not known"):
        likelihoods.likelihood_from_config({"kind": "Cauchy"})
