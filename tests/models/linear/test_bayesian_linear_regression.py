"""Bayesian linear regression: against the Gaussian process that it is, learning, files, mistakes."""

from __future__ import annotations

import math

import matplotlib as mpl
import pytest
import tolerances
import torch
from device import DEVICE
from torch import Tensor, nn

from lapgrad import NonFiniteError, OptionError, ShapeError
from lapgrad._torch import lu as torch_lu
from lapgrad.models import BayesianLinearRegression, PolynomialFeatures, RandomFourierFeatures

METHODS = ("lq", "cholesky")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4))


FEATURES = {
    "inputs": lambda: None,
    "polynomial": lambda: PolynomialFeatures(2),
    "fourier": lambda: RandomFourierFeatures(2, 5, [0.5, 2.0], "matern32", generator=0),
    "network": network,
}


def make_model(
    features: str = "polynomial", targets: int | None = None, n: int = 9, **options
) -> BayesianLinearRegression:
    X = normal(n, 2)
    y = normal(n, seed=1) if targets is None else normal(n, targets, seed=1)
    options = {"normalise": False, **options}
    return BayesianLinearRegression(X, y, FEATURES[features](), noise_var=0.3, **options)


def joint(model: BayesianLinearRegression, X_new: Tensor) -> torch.distributions.MultivariateNormal:
    """Observations at X_new given the data: the Gaussian process with the kernel phi(x)^T S phi(z)."""
    n = len(model.X)
    Phi = model.design(torch.cat([model.X, X_new]))
    K = Phi * model.weight_var() @ Phi.mT + model.noise_var * torch.eye(
        len(Phi), dtype=Phi.dtype, device=DEVICE
    )
    gain = torch_lu.solve(K[:n, :n], K[:n, n:]).mT
    covariance = K[n:, n:] - gain @ K[:n, n:]
    return torch.distributions.MultivariateNormal((gain @ model.Y).mT, 0.5 * (covariance + covariance.mT))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("n", [9, 3])
def test_predictions_are_those_of_the_gaussian_process(n, features, method):
    model = make_model(features, n=n, method=method)
    X_new = normal(4, 2, seed=2)
    with torch.no_grad():
        expected = joint(model, X_new)
        mean, covariance = model.predict(X_new, noise=True, full_cov=True)
        tolerances.assert_close(mean, expected.mean[0])
        tolerances.assert_close(covariance, expected.covariance_matrix[0])
        variance = model.predict(X_new, chunk=3).variance
        tolerances.assert_close(variance, expected.variance[0] - model.noise_var)
        y_new = normal(4, seed=3)
        tolerances.assert_close(model.log_prob(X_new, y_new, joint=True), expected.log_prob(y_new)[0])
        each = torch.distributions.Normal(mean, covariance.diagonal().sqrt()).log_prob(y_new)
        tolerances.assert_close(model.log_prob(X_new, y_new), each)


@pytest.mark.parametrize(
    "options", [{}, {"ard": True}, {"bias": False}, {"prior_var": [1.0, 2.0, 3.0, 1.0, 0.5]}]
)
def test_loss_is_the_density_of_the_targets(options):
    model = make_model(targets=3, **options)
    with torch.no_grad():
        Phi = model.design(model.X)
        covariance = Phi * model.weight_var() @ Phi.mT + model.noise_var * torch.eye(
            9, dtype=Phi.dtype, device=DEVICE
        )
        density = torch.distributions.MultivariateNormal(
            torch.zeros(9, dtype=Phi.dtype, device=DEVICE), covariance
        )
        tolerances.assert_close(model.loss(), -density.log_prob(model.Y.mT).sum())
    learned = {"raw_noise_var", "raw_prior_var"} | ({"raw_bias_var"} if options.get("bias", True) else set())
    assert {name for name, _ in model.named_parameters()} == learned
    assert model.prior_var.shape == ((5,) if options.keys() & {"ard", "prior_var"} else ())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("normalise", [False, True])
def test_fixed_features_are_compressed_without_a_difference(normalise, method):
    """Loss, gradients and posterior of m rows are those of all rows; new data and features are noticed."""
    model = make_model("fourier", targets=2, n=60, ard=True, normalise=normalise, method=method)
    X_new = normal(3, 2, seed=5)

    def everything() -> tuple[Tensor, ...]:
        loss = model.loss()
        parameters = (model.raw_noise_var, model.raw_prior_var, model.raw_bias_var)
        return loss, *torch.autograd.grad(loss, parameters), *model.posterior(), *model.predict(X_new)

    for change in (
        lambda: None,
        lambda: setattr(model.features, "lengthscale", 0.8),
        lambda: model.observe(normal(5, 2, seed=6), normal(5, 2, seed=7)),
    ):
        change()
        model.free("features.lengthscale")
        assert len(model._get_observations().Phi) == len(model.X)
        whole = everything()
        model.fix("features.lengthscale")
        assert len(model._get_observations().Phi) == 11
        few = everything()
        # The factor is unique up to signs of its columns.
        signs = (few[5] * whole[5]).sum(0).sign()
        tolerances.assert_all_close((*few[:5], few[5] * signs, *few[6:]), whole, tolerances.OF_SHIFTED_DATA)


def test_samples_have_the_moments_of_the_prediction():
    model = make_model()
    X_new = normal(3, 2, seed=2)
    with torch.no_grad():
        draws = model.sample(X_new, 20000, generator=0)
        mean, covariance = model.predict(X_new, full_cov=True)
        noisy = model.sample(X_new, 20000, noise=True, generator=0)
    assert draws.shape == (20000, 3)
    # Three standard deviations of a mean of 20000, in units of the largest variance.
    close = 3 * covariance.diagonal().max() / math.sqrt(20000)
    assert (draws.mean(0) - mean).abs().max() < close.clamp_min(close.sqrt())
    assert (draws.mT.cov() - covariance).abs().max() < 2 * close
    assert (noisy.var(0) - draws.var(0) - model.noise_var).abs().max() < 3 * close
    assert torch.equal(model.sample(X_new, 2, generator=7), model.sample(X_new, 2, generator=7))


def test_several_targets_share_variances_and_have_their_own_weights():
    model = make_model(targets=2)
    single = BayesianLinearRegression(
        model.X,
        model.Y[:, 1],
        PolynomialFeatures(2),
        noise_var=0.3,
        prior_var=model.prior_var,
        normalise=False,
    )
    single.bias_var = model.bias_var
    X_new = normal(4, 2, seed=2)
    both, one = model.predict(X_new), single.predict(X_new)
    assert both.mean.shape == (4, 2)
    tolerances.assert_close(both.mean[:, 1], one.mean)
    tolerances.assert_close(both.variance, one.variance)
    assert model.sample(X_new, 3, generator=0).shape == (3, 4, 2)
    assert model.posterior().mean.shape == (6, 2)


def test_observing_data_is_as_good_as_having_it():
    whole = make_model()
    part = BayesianLinearRegression(
        whole.X[:5],
        whole.Y[:5, 0],
        PolynomialFeatures(2),
        noise_var=0.3,
        prior_var=whole.prior_var,
        normalise=False,
    )
    part.bias_var = whole.bias_var
    before = part.log_prob(whole.X[5:], whole.Y[5:, 0], joint=True) - part.loss()
    part.observe(whole.X[5:], whole.Y[5:, 0])
    tolerances.assert_close(part.loss(), whole.loss())
    # p(first) p(rest | first) = p(all)
    tolerances.assert_close(before, -whole.loss())


@pytest.mark.parametrize("method", METHODS)
def test_learns_noise_and_a_polynomial(method):
    x = torch.linspace(-1.0, 1.0, 200, dtype=torch.float64, device=DEVICE)
    truth = 1.0 - 2.0 * x + 3.0 * x**3
    model = BayesianLinearRegression(
        x,
        truth + 0.1 * normal(200),
        PolynomialFeatures(9),
        ard=True,
        method=method,
        normalise=False,
    )
    before = model.loss().item()
    result = model.fit()
    assert result.loss < before - 50
    assert 0.08 < model.noise_var.sqrt() < 0.12
    with torch.no_grad():
        mean, variance = model.predict(x)
    assert ((mean - truth).abs() < 4 * variance.sqrt()).all()
    # Powers that the true function does not contain get weights near zero.
    prior = model.prior_var.detach()
    assert prior[[0, 2]].min() > 100 * prior[[4, 6, 8]].median()


def test_learns_features():
    """A network and a lengthscale are learned along with the variances."""
    x = torch.linspace(0.0, 1.0, 60, dtype=torch.float64, device=DEVICE)
    y = torch.sin(12.0 * x) + 0.05 * normal(60)
    fourier = BayesianLinearRegression(x, y, RandomFourierFeatures(1, 40, 0.5, generator=0), normalise=False)
    fourier.fit(steps=60)
    assert 0.1 < fourier.features.lengthscale < 0.3
    assert fourier.noise_var.sqrt() < 0.1
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
    torch.manual_seed(0)
    for part in (net[0], net[2]):
        part.reset_parameters()
    hybrid = BayesianLinearRegression(x, y, net, normalise=False)
    hybrid.fit("adam", steps=300, lr=0.03)
    assert hybrid.noise_var.sqrt() < 0.15


def test_predictions_have_gradients_in_the_new_inputs_alone():
    model = make_model("network")
    X_new = normal(2, 2, seed=3)
    assert not model.predict(X_new).mean.requires_grad
    X_new.requires_grad_()
    mean, variance = model.predict(X_new)
    (mean.sum() + variance.sum()).backward()
    assert X_new.grad.abs().min() > 0
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_predictions_follow_the_parameters():
    model = make_model()
    X_new = normal(2, 2, seed=3)
    first = model.predict(X_new)
    assert torch.equal(model.predict(X_new).mean, first.mean)
    model.noise_var = 3.0
    assert not torch.equal(model.predict(X_new).mean, first.mean)


def test_normalised_data_are_those_in_other_units():
    """Shifted and scaled data give the same model: predictions in their units, densities by their scale."""
    X, Y = normal(20, 2), normal(20, 2, seed=1)
    X_new, Y_new = normal(3, 2, seed=2), normal(3, 2, seed=3)
    units, offset = (
        torch.tensor([10.0, 0.01], dtype=torch.float64, device=DEVICE),
        torch.tensor([1e3, -5.0], dtype=torch.float64, device=DEVICE),
    )
    plain = BayesianLinearRegression(X, Y, PolynomialFeatures(2), normalise=True)
    other = BayesianLinearRegression(
        X * units + offset, 7.0 * Y + 50.0, PolynomialFeatures(2), normalise=True
    )
    mean, variance = plain.predict(X_new, noise=True)
    other_mean, other_variance = other.predict(X_new * units + offset, noise=True)
    tolerances.assert_close(other_mean, 7.0 * mean + 50.0, tolerances.OF_SHIFTED_DATA)
    tolerances.assert_close(other_variance, 49.0 * variance, tolerances.OF_SHIFTED_DATA)
    tolerances.assert_close(other.loss(), plain.loss() + 40 * math.log(7.0), tolerances.OF_SHIFTED_DATA)
    for joint, count in ((False, 1), (True, 3)):
        found = other.log_prob(X_new * units + offset, 7.0 * Y_new + 50.0, joint=joint)
        expected = plain.log_prob(X_new, Y_new, joint=joint) - count * math.log(7.0)
        tolerances.assert_close(found, expected, tolerances.OF_SHIFTED_DATA)
    draws = other.sample(X_new * units + offset, 2, generator=0)
    tolerances.assert_close(
        draws, 7.0 * plain.sample(X_new, 2, generator=0) + 50.0, tolerances.OF_SHIFTED_DATA
    )


def test_data_without_noise_stay_above_the_floor():
    x = torch.linspace(-1.0, 1.0, 30, dtype=torch.float64, device=DEVICE)
    model = BayesianLinearRegression(x, 1.0 + x**2, PolynomialFeatures(4), normalise=False)
    model.fit("adam", steps=300, lr=0.3, tolerance=0.0)
    assert model.noise_floor < model.noise_var < 1e3 * model.noise_floor


@pytest.mark.parametrize("features", FEATURES)
def test_files(features, tmp_path):
    model = make_model(features, ard=True, normalise=features == "polynomial")
    model.fit(steps=5)
    model.fix("noise_var")
    path = tmp_path / "model.pt"
    model.save(path)
    modules = {"features": nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4))}
    loaded = BayesianLinearRegression.load(path, modules=modules if features == "network" else None)
    X_new = normal(3, 2, seed=2)
    assert torch.equal(loaded.predict(X_new).mean, model.predict(X_new).mean)
    assert torch.equal(loaded.loss(), model.loss())
    assert not loaded.raw_noise_var.requires_grad
    assert loaded.raw_prior_var.requires_grad


def test_a_network_is_asked_for_when_its_file_is_read(tmp_path):
    make_model("network").save(tmp_path / "model.pt")
    with pytest.raises(OptionError, match=r"modules=\{'features': network\}"):
        BayesianLinearRegression.load(tmp_path / "model.pt")


@pytest.mark.parametrize("method", METHODS)
def test_degenerate_data(method):
    """One row, equal rows, a constant column, constant targets."""
    one = BayesianLinearRegression(
        torch.ones(1, 1, device=DEVICE).double(),
        torch.ones(1, device=DEVICE).double(),
        method=method,
        normalise=False,
    )
    assert one.loss().isfinite()
    X = torch.cat([normal(6, 1), torch.ones(6, 1, device=DEVICE)], 1).repeat(2, 1)
    model = BayesianLinearRegression(
        X,
        torch.full((12,), 3.0, dtype=torch.float64, device=DEVICE),
        method=method,
        normalise=False,
    )
    result = model.fit(steps=30)
    assert math.isfinite(result.loss)
    mean, variance = model.predict(X[:2])
    assert (mean - 3.0).abs().max() < 0.1
    assert (variance >= 0).all()
    assert model.predict(X[:0]).mean.shape == (0,)


def test_float32_stays_float32():
    X, y = normal(20, 2, dtype=torch.float32), normal(20, seed=1, dtype=torch.float32)
    model = BayesianLinearRegression(X, y, RandomFourierFeatures(2, 10, generator=0), normalise=False)
    model.fit(steps=5)
    found = (*model.predict(X), model.sample(X), model.log_prob(X, y), model.log_prob(X, y, joint=True))
    assert {value.dtype for value in (*model.state_dict().values(), *found)} == {torch.float32}


@pytest.mark.parametrize("method", METHODS)
def test_float32_learns_as_float64_does(method):
    """Fifty frequencies for a smooth curve give features that are linearly dependent in float32."""
    x = 10.0 * torch.rand(400, dtype=torch.float32, generator=torch.Generator().manual_seed(0)).to(DEVICE).to(
        DEVICE
    )
    y = torch.sin(3.0 * x) + 0.05 * normal(400, dtype=torch.float32)
    losses = []
    for dtype in (torch.float32, torch.float64):
        features = RandomFourierFeatures(1, 50, 1.0, generator=0)
        model = BayesianLinearRegression(x.to(dtype), y.to(dtype), features, method=method, normalise=False)
        losses.append(model.fit(steps=25).loss)
    assert abs(losses[0] - losses[1]) < 0.01 * abs(losses[1])


def test_plot():
    mpl.use("Agg")
    x = torch.linspace(-1.0, 1.0, 10, dtype=torch.float64, device=DEVICE)
    axes = BayesianLinearRegression(x, x**2, PolynomialFeatures(2), normalise=False).plot(margin=0.2)
    drawn = axes.lines[0].get_xdata()
    assert (drawn[0], drawn[-1]) == pytest.approx((-1.4, 1.4))
    with pytest.raises(OptionError, match="one input and one target can be drawn, there are 2 and 1"):
        make_model().plot()


@pytest.mark.parametrize(
    ("X", "y", "options", "kind", "message"),
    [
        (torch.ones(3, 2, device=DEVICE), torch.ones(4, device=DEVICE), {}, ShapeError, "n = 3 like X"),
        (
            torch.tensor([1.0, math.nan, 2.0], device=DEVICE),
            torch.ones(3, device=DEVICE),
            {},
            NonFiniteError,
            "X contains NaN.* row 1",
        ),
        (
            torch.ones(3, device=DEVICE),
            torch.ones(3, device=DEVICE),
            {"method": "svd"},
            OptionError,
            "method must be one of",
        ),
        (
            torch.ones(3, device=DEVICE),
            torch.ones(3, device=DEVICE),
            {"noise_var": -1.0},
            OptionError,
            "noise_var must be greater",
        ),
        (
            torch.ones(3, 2, device=DEVICE),
            torch.ones(3, device=DEVICE),
            {"prior_var": [1.0]},
            ShapeError,
            "must be a number or have 2 entries",
        ),
        (
            torch.ones(3, device=DEVICE),
            torch.ones(3, device=DEVICE),
            {"features": nn.Flatten(0)},
            ShapeError,
            r"must map \(3, 1\) to \(3, m\)",
        ),
    ],
)
def test_mistakes_are_named(X, y, options, kind, message):
    with pytest.raises(kind, match=f"BayesianLinearRegression: .*{message}"):
        BayesianLinearRegression(X, y, **options)


def test_new_inputs_must_be_like_the_data():
    model = make_model()
    with pytest.raises(ShapeError, match="X_new must have 2 columns"):
        model.predict(torch.ones(3, 1, dtype=torch.float64, device=DEVICE))
