"""SparseGPRegression: against the exact process, in learning, prediction, samples and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, OF_JITTER, assert_all_close, assert_close
from torch import Tensor

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.models import SparseGPRegression, kernels
from lapgrad.models.kernels import RBF

DOUBLE = torch.float64


def data(n: int = 40, d: int = 1, k: int | None = None, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    X = 4.0 * torch.rand(n, d, dtype=DOUBLE, generator=generator).to(DEVICE)
    phases = torch.arange(1 if k is None else k, dtype=DOUBLE, device=DEVICE)
    y = torch.sin(X.sum(-1, keepdim=True) + phases)
    y = 2.0 + y + 0.1 * torch.randn(y.shape, dtype=DOUBLE, generator=generator).to(DEVICE)
    return X.to(dtype), (y[:, 0] if k is None else y).to(dtype)


def compute_exact(model: SparseGPRegression, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the Gaussian process with the same parameters."""
    with torch.no_grad():
        A = model.kernel(model.X) + model.noise_var * torch.eye(len(model.X), dtype=X.dtype, device=DEVICE)
        cross = model.kernel(model.X, X)
        weights = torch_lu.solve(A, cross)
        mean = model.constant + weights.mT @ (model.y - model.constant)
        return mean, model.kernel(X) - weights.mT @ cross


def make_model_at_data(**options: Any) -> SparseGPRegression:
    """All points are inducing, so that nothing is approximated but by the jitter."""
    X, y = data()
    options = {"normalise": False, **options}
    return SparseGPRegression(X, y, RBF(0.7, 1.3), inducing=X, noise_var=0.05, jitter=1e-10, **options)


def test_exact_when_all_points_are_inducing() -> None:
    model = make_model_at_data()
    X = torch.linspace(-1.0, 5.0, 30, dtype=DOUBLE, device=DEVICE)
    mean, covariance = compute_exact(model, X[:, None])
    found = model.predict(X, full_cov=True)
    assert_close(found.mean, mean[:, 0], OF_JITTER)
    assert_close(found.covariance, covariance, OF_JITTER)
    nll = lapgrad.models.gp_nll(model.kernel(model.X), model.y - model.constant, model.noise_var)
    assert_close(model.loss(), nll, OF_JITTER)


def test_loss_is_the_criterion_of_its_matrices() -> None:
    X, y = data(d=2)
    model = SparseGPRegression(
        X, y, RBF(torch.tensor([0.7, 1.1], device=DEVICE)), inducing=5, generator=1, normalise=False
    )
    Z = model.inducing
    Kuu = model.kernel(Z)
    Kuu = Kuu + 1e-6 * Kuu.diagonal().mean() * torch.eye(5, dtype=DOUBLE, device=DEVICE)
    expected = lapgrad.models.sgp_nll_from_matrices(
        Kuu, model.kernel(Z, X), model.kernel.diag(X), y - model.constant, model.noise_var
    )
    assert_close(model.loss(), expected)
    parameters = list(model.parameters())
    assert len(parameters) == 5
    found = torch.autograd.grad(model.loss(), parameters)
    assert_all_close(found, torch.autograd.grad(expected, parameters), HIGHER_ORDER)


KERNELS: dict[str, Callable[[], kernels.Kernel]] = {
    "Matern12": kernels.Matern12,
    "Matern52": kernels.Matern52,
    "RationalQuadratic": kernels.RationalQuadratic,
    "Periodic + Linear": lambda: kernels.Periodic() + kernels.Linear(),
    "Polynomial * RBF": lambda: kernels.Polynomial(degree=2) * RBF(),
    "Constant + White": lambda: kernels.Constant() + kernels.White(),
    "deep": lambda: kernels.Deep(RBF(), torch.nn.Linear(2, 3, device=DEVICE)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_any_kernel(name: str, dtype: torch.dtype) -> None:
    """The streamed loss and its gradients are those of the matrices, in float64, whatever the dtype."""
    X, y = data(d=2, dtype=dtype)
    torch.manual_seed(0)
    options: dict[str, Any] = {"jitter": 1e-3, "chunk": 9, "init": "kmeans++", "generator": 1}
    model = SparseGPRegression(X, y, KERNELS[name](), inducing=5, normalise=False, **options)
    found = torch.autograd.grad(model.loss(), list(model.parameters()))
    value = model.loss().detach()
    model.double()  # in place: the criterion of the matrices has no precision but that of its arguments
    Z, inputs = model.inducing, X.double()
    Kuu = model.kernel(Z)
    Kuu = Kuu + 1e-3 * Kuu.diagonal().mean() * torch.eye(5, dtype=DOUBLE, device=DEVICE)
    expected = lapgrad.models.sgp_nll_from_matrices(
        Kuu, model.kernel(Z, inputs), model.kernel.diag(inputs), y.double() - model.constant, model.noise_var
    )
    assert_close(value, expected.to(dtype))
    gradients = torch.autograd.grad(expected, list(model.parameters()), materialize_grads=True)
    for one, other in zip(found, gradients, strict=True):
        assert_close(one, other.to(dtype), HIGHER_ORDER)
    assert model.predict(inputs[:3], full_cov=True).covariance.isfinite().all()


def test_prediction_is_consistent() -> None:
    """Variances are the diagonal of the covariance, in chunks or not, and noise is added to them."""
    X, y = data()
    model = SparseGPRegression(X, y, inducing=6, noise_var=0.02, generator=0, normalise=False)
    new = torch.linspace(0, 5, 23, dtype=DOUBLE, device=DEVICE)
    mean, covariance = model.predict(new, full_cov=True)
    for chunk in (None, 5, 100):
        found = model.predict(new, chunk=chunk)
        assert_all_close(found, (mean, covariance.diagonal()))
    assert torch.equal(covariance, covariance.mT)
    assert_close(model.predict(new, noise=True).variance, covariance.diagonal() + 0.02)
    noisy = model.predict(new, noise=True, full_cov=True).covariance
    assert_close(noisy, covariance + 0.02 * torch.eye(23, dtype=DOUBLE, device=DEVICE))
    assert model.predict(new[:0]).mean.shape == (0,)


def test_gradient_of_a_prediction_is_that_of_the_inputs() -> None:
    X, y = data(d=2)
    model = SparseGPRegression(X, y, inducing=6, generator=0, normalise=False)
    new = X[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda new: tuple(model.predict(new)), (new,))
    assert not any(part.requires_grad for part in model.predict(X[:3]))


def test_log_prob() -> None:
    X, y = data()
    model = SparseGPRegression(X, y, inducing=6, noise_var=0.02, generator=0, normalise=False)
    new, y_new = data(11)
    mean, covariance = model.predict(new, noise=True, full_cov=True)
    together = torch.distributions.MultivariateNormal(mean, covariance).log_prob(y_new)
    assert_close(model.log_prob(new, y_new, joint=True), together.detach(), HIGHER_ORDER)
    alone = torch.distributions.Normal(mean, covariance.diagonal().sqrt()).log_prob(y_new)
    assert_close(model.log_prob(new, y_new), alone.detach())


def test_several_outputs_are_one_model_each() -> None:
    X, Y = data(k=3)
    options: dict[str, Any] = {"inducing": X[::8], "noise_var": 0.05, "normalise": False}
    kernel = RBF(0.8)
    together = SparseGPRegression(X, Y, kernel, **options)
    apart = [SparseGPRegression(X, Y[:, j], kernel, **options) for j in range(3)]
    assert_close(together.loss(), torch.stack([model.loss() for model in apart]).sum())
    mean, variance = together.predict(X[:5])
    assert mean.shape == (5, 3)
    assert variance.shape == (5,)
    for j, model in enumerate(apart):
        assert_all_close((mean[:, j], variance), tuple(model.predict(X[:5])))
    for joint in (True, False):
        densities = [model.log_prob(X[:5], Y[:5, j], joint=joint) for j, model in enumerate(apart)]
        assert_close(together.log_prob(X[:5], Y[:5], joint=joint), torch.stack(densities, -1))
    assert together.sample(X[:5], 4, generator=0).shape == (4, 5, 3)


def test_samples_have_the_moments_of_the_prediction() -> None:
    X, y = data()
    model = SparseGPRegression(X, y, inducing=6, noise_var=0.02, generator=0, normalise=False)
    new = torch.tensor([0.5, 0.6, 4.8], dtype=DOUBLE, device=DEVICE)
    mean, covariance = model.predict(new, noise=True, full_cov=True)
    draws = model.sample(new, 20_000, noise=True, generator=3)
    assert torch.equal(draws, model.sample(new, 20_000, noise=True, generator=3))
    error = 5.0 / 20_000**0.5  # five standard deviations of the averages
    assert ((draws.mean(0) - mean).abs() < error * covariance.diagonal().sqrt()).all()
    spread = covariance.diagonal().sqrt()
    assert ((draws.T.cov() - covariance).abs() < 2.0 * error * spread * spread[:, None]).all()


def test_fit_learns_everything() -> None:
    X, y = data(200)
    model = SparseGPRegression(X, y, inducing=7, init="random", generator=5, normalise=False)
    before, Z = model.loss().item(), model.inducing.detach().clone()
    result = model.fit(steps=60)
    assert result.loss < before - 20
    assert 0.005 < model.noise_var.item() < 0.02
    assert not torch.allclose(model.inducing, Z)
    new = torch.linspace(0.2, 3.8, 50, dtype=DOUBLE, device=DEVICE)
    assert (model.predict(new).mean - 2.0 - torch.sin(new)).abs().max() < 0.1
    model.fix("inducing")
    Z = model.inducing.detach().clone()
    model.fit("adam", steps=3)
    assert torch.equal(model.inducing, Z)


def test_float32_is_float64_rounded() -> None:
    """As many inducing inputs as a float32 Cholesky factorisation of their matrix does not survive."""
    X, y = data(300, dtype=torch.float32)
    single = SparseGPRegression(X, y, RBF(1.0), inducing=X, noise_var=0.1, normalise=False)
    double = SparseGPRegression(
        X.double(), y.double(), RBF(1.0), inducing=X.double(), noise_var=0.1, normalise=False
    )
    with pytest.raises(lapgrad.NotPositiveDefiniteError):
        lapgrad.potrf(single.kernel(X))
    with torch.no_grad():  # the parameters of both are the same to the last bit of float32
        for one, other in zip(double.parameters(), single.parameters(), strict=True):
            one.copy_(other)
    assert single.loss().dtype is torch.float32
    assert_close(single.loss(), double.loss().float())
    found = torch.autograd.grad(single.loss(), list(single.parameters()))
    expected = torch.autograd.grad(double.loss(), list(double.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other.float())
    assert_all_close(
        tuple(single.predict(X[:9])), tuple(part.float() for part in double.predict(X[:9].double()))
    )


@pytest.mark.parametrize("init", ["greedy", "kmeans++", "random"])
def test_inducing_inputs_are_rows(init: str) -> None:
    X, y = data(50, 3)
    model = SparseGPRegression(X, y, inducing=20, init=init, generator=7, normalise=False)
    again = SparseGPRegression(
        X, y, inducing=20, init=init, generator=torch.Generator(DEVICE).manual_seed(7), normalise=False
    )
    assert torch.equal(model.inducing, again.inducing)
    found = (model.inducing[:, None] == X).all(-1)
    assert found.any(1).all()
    assert found.sum() == 20
    assert len(SparseGPRegression(X, y, inducing=70, init=init, normalise=False).inducing) == 50


def test_kmeans_plus_plus_spreads() -> None:
    """Of a cluster and two points far from it, each place gets a centre, and no row is chosen twice."""
    X = torch.zeros(1000, 2, dtype=DOUBLE, device=DEVICE)
    X[3], X[700] = torch.tensor([100.0, 0.0], device=DEVICE), torch.tensor([0.0, 1e-3], device=DEVICE)
    model = SparseGPRegression(X, X[:, 0], inducing=10, generator=0, normalise=False)
    assert len(model.inducing) == 3
    assert len(model.inducing.detach().unique(dim=0)) == 3


def test_odd_data() -> None:
    """One row, targets and columns that do not vary, rows that are there twice."""
    one = SparseGPRegression(
        torch.ones(1, 2, dtype=DOUBLE, device=DEVICE),
        torch.ones(1, dtype=DOUBLE, device=DEVICE),
        normalise=False,
    )
    assert one.predict(torch.ones(1, 2, dtype=DOUBLE, device=DEVICE)).mean.item() == pytest.approx(1.0)
    X = torch.stack([torch.arange(6.0, device=DEVICE), torch.ones(6, device=DEVICE)], 1).repeat(2, 1).double()
    twice = SparseGPRegression(X, torch.ones(12, dtype=DOUBLE, device=DEVICE), inducing=X, normalise=False)
    assert twice.loss().isfinite()
    assert twice.jitter == 0.0
    assert_close(twice.predict(X).mean, torch.ones(12, dtype=DOUBLE, device=DEVICE))


def test_more_jitter_is_reported() -> None:
    X, y = data(60)
    model = SparseGPRegression(X, y, RBF(3.0), inducing=X, jitter=0.0, normalise=False)
    with pytest.warns(lapgrad.JitterWarning, match="SparseGPRegression"):
        model.loss()
    assert 0.0 < model.jitter < 1e-6


def test_normalise_changes_units_alone() -> None:
    """A model of scaled data with the same parameters predicts the same, in the units of the data."""
    X, Y = data(50, 2, k=2)
    X, Y = X * torch.tensor([100.0, 1e-3], device=DEVICE) + 7.0, 30.0 * Y - 4.0
    shift, scale = Y.mean(0), Y.var(0, correction=0).mean().sqrt()
    scaled = (X - X.mean(0)) / X.std(0, correction=0)
    plain = SparseGPRegression(
        scaled, (Y - shift) / scale, RBF(0.8), inducing=scaled[:5], noise_var=0.1, normalise=False
    )
    model = SparseGPRegression(X, Y, RBF(0.8), inducing=X[:5], noise_var=0.1, normalise=True)
    assert_close(model.loss(), plain.loss() + Y.numel() * scale.log())
    mean, variance = plain.predict(scaled[:7], noise=True)
    assert_all_close(tuple(model.predict(X[:7], noise=True)), (mean * scale + shift, variance * scale**2))
    assert_close(
        model.log_prob(X[:7], Y[:7]), plain.log_prob(scaled[:7], (Y[:7] - shift) / scale) - scale.log()
    )


def test_prediction_follows_the_parameters() -> None:
    """The cached posterior is computed again when a parameter changes."""
    X, y = data()
    model = SparseGPRegression(X, y, RBF(0.7), inducing=6, generator=0, normalise=False)
    first = model.predict(X[:3]).mean
    assert torch.equal(model.predict(X[:3]).mean, first)
    model.kernel.lengthscale = 0.3
    changed = model.predict(X[:3]).mean
    assert not torch.allclose(changed, first)
    again = SparseGPRegression(X, y, RBF(0.3), inducing=model.inducing, normalise=False)
    assert_close(again.predict(X[:3]).mean, changed)


@pytest.mark.parametrize("mean", ["constant", "zero"])
def test_files(tmp_path: Path, mean: Any) -> None:
    X, Y = data(30, 2, k=2)
    kernel = RBF(torch.tensor([0.5, 0.9], device=DEVICE)) + RBF(2.0)
    model = SparseGPRegression(X, Y, kernel, inducing=4, mean=mean, jitter=1e-5, chunk=11, normalise=True)
    model.fix("inducing")
    model.fit(steps=4)
    model.save(tmp_path / "model.pt")
    loaded = SparseGPRegression.load(tmp_path / "model.pt")
    assert torch.equal(loaded.loss(), model.loss())
    assert_all_close(tuple(loaded.predict(X)), tuple(model.predict(X)), 0)
    assert loaded.config() == model.config()
    assert not loaded.get_parameter("raw_inducing").requires_grad


def test_plot() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = data()
    axes = SparseGPRegression(X, y, inducing=5, normalise=False).plot()
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"mean", "data", "inducing inputs"}
    matplotlib.pyplot.close("all")
    with pytest.raises(lapgrad.ShapeError, match="one input"):
        SparseGPRegression(*data(d=2), inducing=5, normalise=False).plot()


def test_errors() -> None:
    X, y = data()
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (lapgrad.OptionError, "init must be one of", {"init": "grid"}),
        (lapgrad.OptionError, "mean must be", {"mean": "cubic"}),
        (lapgrad.OptionError, "inducing must be", {"inducing": 0}),
        (lapgrad.OptionError, "inducing must be", {"inducing": True}),
        (lapgrad.OptionError, "jitter", {"jitter": -1.0}),
        (lapgrad.OptionError, "chunk", {"chunk": 0}),
        (lapgrad.OptionError, "noise_var", {"noise_var": -1.0}),
        (
            lapgrad.ShapeError,
            "inducing must have 1 column",
            {"inducing": torch.zeros(3, 2, dtype=DOUBLE, device=DEVICE)},
        ),
        (lapgrad.DTypeError, "same dtype", {"inducing": torch.zeros(3, 1, device=DEVICE)}),
        (lapgrad.ShapeError, "RBF", {"kernel": RBF(torch.ones(3, device=DEVICE))}),
        (lapgrad.OptionError, "kernel must be a Kernel", {"kernel": RBF}),
        (lapgrad.ShapeError, "noise_var must be a scalar", {"noise_var": [0.1, 0.2]}),
    ]
    for error, message, options in cases:
        with pytest.raises(error, match=message):
            SparseGPRegression(X, y, **options)
    with pytest.raises(lapgrad.NonFiniteError, match="row 2"):
        SparseGPRegression(
            X, torch.where(torch.arange(40, device=DEVICE) == 2, torch.nan, y), normalise=False
        )
    model = SparseGPRegression(X, y, normalise=False)
    with pytest.raises(lapgrad.ShapeError, match=r"SparseGPRegression.predict: X_new"):
        model.predict(torch.zeros(3, 2, dtype=DOUBLE, device=DEVICE))
    with pytest.raises(lapgrad.OptionError, match=r"SparseGPRegression.predict: chunk"):
        model.predict(X, chunk=0)
