"""VariationalGP and GPClassification: the bound, fits, and files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, OF_JITTER, assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import DeepGPRegression, GPClassification, SparseGPRegression, VariationalGP
from lapgrad.models.kernels import RBF, Matern32
from lapgrad.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)

DOUBLE = torch.float64


def grid(n: int = 120) -> Tensor:
    return torch.linspace(0, 6, n, dtype=DOUBLE, device=DEVICE)


def fit(model: VariationalGP | GPClassification, steps: int = 100) -> None:
    model.fit(steps=steps, lr=0.03, generator=0)


def test_gaussian_bound_is_that_of_the_sparse_model() -> None:
    """q(u) starts at the optimum for the Gaussian likelihood: the collapsed bound."""
    x = grid(60)
    y = torch.sin(x) + 0.1 * torch.randn(60, dtype=DOUBLE, device=DEVICE)
    Z, kernel = x[::6, None], Matern32(lengthscale=1.5, variance=0.8)
    options = {"inducing": Z, "normalise": False, "jitter": 1e-9}
    model = VariationalGP(x, y, Gaussian(noise_var=0.05), kernel, **options)  # type: ignore[arg-type]
    sparse = SparseGPRegression(x, y, kernel, noise_var=0.05, **options)  # type: ignore[arg-type]
    assert_close(model.loss().detach(), sparse.loss().detach(), OF_JITTER)
    mean, variance = model.predict(x + 0.05, noise=True)
    expected = sparse.predict(x + 0.05, noise=True)
    assert_close(mean, expected.mean, OF_JITTER)
    assert_close(variance, expected.variance, OF_JITTER)
    assert_close(model.log_prob(x, y), sparse.log_prob(x, y), OF_JITTER)


def test_layers_are_those_of_deep_regression() -> None:
    x = grid(40)
    y = torch.sin(x)
    options = {"widths": (2,), "inducing": x[::4, None], "start": "prior", "normalise": False}
    model = VariationalGP(x, y, Gaussian(noise_var=0.1), RBF(), **options)  # type: ignore[arg-type]
    deep = DeepGPRegression(x, y, RBF(), noise_var=0.1, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        model.constant = 0.0
        assert_close(model.loss(generator=3), deep.loss(generator=3))


@pytest.mark.parametrize("start", ["prior", "data"])
def test_minibatches_estimate_the_loss(start: str) -> None:
    x = grid()
    model = VariationalGP(x, (torch.sin(x) > 0), Bernoulli(), inducing=8, start=start, generator=0)
    with torch.no_grad():
        values = torch.stack([model.loss(batch=30, generator=seed) for seed in range(60)])
        error = values.std() / 60**0.5
        assert (values.mean() - model.loss()).abs() < 5 * error


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "poisson", "student_t", "heteroscedastic"])
def test_data_start_is_better_than_the_prior(name: str) -> None:
    x = grid()
    likelihood, y = observe(name, x)
    losses = [
        float(
            VariationalGP(x, y, likelihood, inducing=10, start=start, generator=0).loss(generator=0).detach()
        )
        for start in ("data", "prior")
    ]
    assert losses[0] < losses[1]


def observe(name: str, x: Tensor) -> tuple[Likelihood, Tensor]:
    source = torch.Generator(DEVICE).manual_seed(1)
    normal = torch.randn(len(x), dtype=DOUBLE, device=DEVICE, generator=source)
    if name == "bernoulli":
        return Bernoulli(), (torch.sin(x) + 0.3 * normal > 0).to(DOUBLE)
    if name == "categorical":
        return Categorical(3), (x / 2.01).floor()
    if name == "poisson":
        return Poisson(), torch.poisson(torch.exp(1 + torch.sin(x)), generator=source)
    if name == "student_t":
        y = torch.sin(x) + 0.1 * normal
        y[::15] += 8.0
        return StudentT(), y
    return HeteroscedasticGaussian(), torch.sin(x) + (0.02 + 0.5 * (x > 3)) * normal


def test_learns_counts() -> None:
    x = grid(600)
    model = VariationalGP(x, observe("poisson", x)[1].long(), Poisson(), inducing=10, generator=0)
    fit(model, 50)
    rate, variance = model.predict(x, noise=True)
    truth = torch.exp(1 + torch.sin(x))
    # About ten degrees of freedom share 600 counts of 3 on average: three times sqrt(10 / 1800) is 22 %.
    assert ((rate - truth).abs() / truth).mean() < 0.22
    assert (variance > rate).all()
    assert model.predict(x).mean.shape == (600,)


def test_outliers_move_little() -> None:
    x = grid()
    likelihood, y = observe("student_t", x)
    robust = VariationalGP(x, y, likelihood, inducing=10, generator=0)
    normal = VariationalGP(x, y, Gaussian(), inducing=10, generator=0)
    errors = []
    for model in (robust, normal):
        fit(model, 80)
        errors.append(float((model.predict(x).mean - torch.sin(x)).square().mean().sqrt()))
    assert errors[0] < 0.1 < errors[1]


def test_noise_depends_on_the_input() -> None:
    x = grid()
    likelihood, y = observe("heteroscedastic", x)
    model = VariationalGP(x, y, likelihood, inducing=10, generator=0)
    fit(model, 100)
    deviation = model.predict(x, noise=True).variance.sqrt()
    assert deviation.shape == (120,)
    assert deviation[x < 2].mean() < 0.15
    assert deviation[x > 4].mean() > 0.3


def test_functions_have_the_units_of_the_observations() -> None:
    x = grid()
    y = observe("heteroscedastic", x)[1]
    model, other = (
        VariationalGP(x, values, HeteroscedasticGaussian(), inducing=10, generator=0)
        for values in (y, 100.0 * y + 7.0)
    )
    for one in (model, other):
        fit(one, 3)
    (mean, variance), (there, spread) = model.predict(x), other.predict(x)
    factors, offsets = mean.new_tensor([100.0, 1.0]), mean.new_tensor([7.0, 2.0 * math.log(100.0)])
    assert_close(there, factors * mean + offsets, HIGHER_ORDER)
    assert_close(spread, factors.square() * variance, HIGHER_ORDER)
    assert_close(model.predict(x, noise=True).mean, mean[:, 0])
    draws = model.sample(x, 400, generator=0)
    assert bool(((draws.mean(0) - mean).abs() < 5.0 * (variance / 400).sqrt()).all())


@pytest.mark.parametrize("labels", ["text", "numbers", "bools", "tensor"])
def test_labels(labels: str) -> None:
    x = grid()
    truth = (torch.sin(x) > 0).cpu().numpy()
    given = {
        "text": np.where(truth, "yes", "no").tolist(),
        "numbers": np.where(truth, 7, -2),
        "bools": truth,
        "tensor": torch.from_numpy(truth).long().to(DEVICE) + 3,
    }[labels]
    model = GPClassification(x, given, inducing=8, generator=0)
    fit(model, 50)
    array = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    assert model.classes.tolist() == sorted(set(array.tolist()))
    found, probabilities = model.predict(x)
    assert (found == array).mean() > 0.97
    assert_close(probabilities.sum(-1), torch.ones_like(x))
    numbers = torch.from_numpy(np.searchsorted(model.classes, array)).to(DEVICE)
    assert_close(model.log_prob(x, given).exp(), probabilities.gather(-1, numbers[:, None])[:, 0])


def test_three_classes() -> None:
    x = grid()
    labels = np.array(["a", "b", "c"])[(x / 2.01).long().cpu().numpy()]
    model = GPClassification(x, labels, inducing=12, generator=0)
    fit(model)
    assert (model.predict(x).labels == labels).mean() > 0.95
    drawn = model.sample(x[::20], 50, generator=0)
    assert drawn.shape == (50, 6)
    assert (drawn[:, 0] == "a").mean() > 0.8


def test_two_moons_need_a_curved_boundary() -> None:
    source = torch.Generator(DEVICE).manual_seed(0)
    angle = torch.rand(200, dtype=DOUBLE, device=DEVICE, generator=source) * torch.pi
    X = torch.stack((angle.cos(), angle.sin()), -1)
    X[100:] = torch.tensor([1.0, 0.4], dtype=DOUBLE, device=DEVICE) - X[100:]
    X = X + 0.1 * torch.randn(200, 2, dtype=DOUBLE, device=DEVICE, generator=source)
    labels = torch.arange(200, device=DEVICE) >= 100
    model = GPClassification(X, labels, inducing=20, generator=0)
    fit(model)
    assert (model.predict(X).labels == labels.cpu().numpy()).mean() > 0.98
    far = model.predict_proba(torch.full((1, 2), 50.0, dtype=DOUBLE, device=DEVICE))
    assert (far - 0.5).abs().max() < 0.1


def test_predictions_are_differentiable_in_the_inputs() -> None:
    x = grid(30)
    model = VariationalGP(x, observe("poisson", x)[1], Poisson(), inducing=6, generator=0)
    new = torch.tensor([[1.0], [2.0]], dtype=DOUBLE, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda new: model.predict(new, noise=True).mean, new)
    assert not model.predict(new.detach(), noise=True).mean.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "poisson", "student_t", "heteroscedastic"])
def test_a_file_predicts_the_same(name: str, tmp_path: Path) -> None:
    x = grid(30)
    likelihood, y = observe(name, x)
    model = VariationalGP(x, y, likelihood, Matern32(), inducing=5, widths=(1,), generator=0)
    model.save(tmp_path / "model")
    loaded = VariationalGP.load(tmp_path / "model")
    for noise in (False, True):
        for one, other in zip(model.predict(x, noise=noise), loaded.predict(x, noise=noise), strict=True):
            assert torch.equal(one, other)
    assert model.loss(generator=1).equal(loaded.loss(generator=1))


def test_a_file_of_a_classifier_has_its_labels(tmp_path: Path) -> None:
    x = grid(30)
    labels = np.where(x.cpu().numpy() > 3, "late", "early")
    model = GPClassification(x, labels, inducing=5, generator=0)
    model.save(tmp_path / "model")
    loaded = GPClassification.load(tmp_path / "model")
    assert loaded.classes.tolist() == ["early", "late"]
    assert (loaded.predict(x).labels == model.predict(x).labels).all()


def test_errors() -> None:
    x = grid(10)
    with pytest.raises(lapgrad.OptionError, match="at least two classes"):
        GPClassification(x, ["same"] * 10)
    with pytest.raises(lapgrad.ShapeError, match="10 rows of X, got 9 labels"):
        GPClassification(x, [0, 1, 0, 1, 0, 1, 0, 1, 0])
    with pytest.raises(lapgrad.OptionError, match=r"labels must be classes .* got 0.6"):
        GPClassification(x, x)
    with pytest.raises(lapgrad.OptionError, match=r"labels must be classes .* got nan"):
        GPClassification(x, [0.0, 1.0] * 4 + [0.0, float("nan")])
    with pytest.raises(lapgrad.OptionError, match="likelihood must be one of"):
        VariationalGP(x, x, "poisson")  # type: ignore[arg-type]
    with pytest.raises(lapgrad.OptionError, match=r"y must be whole numbers >= 0; not so in rows \[1"):
        VariationalGP(x, x, Poisson())
    with pytest.raises(lapgrad.OptionError, match="one column"):
        VariationalGP(x, torch.stack((x, x), -1), HeteroscedasticGaussian())
    with pytest.raises(lapgrad.OptionError, match=r"got the class Poisson: write Poisson\(\.\.\.\)"):
        VariationalGP(x, x, Poisson)  # type: ignore[arg-type]
    model = GPClassification(x, (x > 3), inducing=3)
    with pytest.raises(lapgrad.OptionError, match=r"labels that are not classes of the model: \['maybe'\]"):
        model.log_prob(x[:1], ["maybe"])
