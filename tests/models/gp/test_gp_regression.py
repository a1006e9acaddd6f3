"""GPRegression: against the formulas written out, against scikit-learn, and through its files."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, assert_close
from torch import Tensor

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.models import GPRegression, Model
from lapgrad.models._storage.archive import write_archive
from lapgrad.models.kernels import (
    RBF,
    Constant,
    Deep,
    Kernel,
    Linear,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    White,
)

F64 = torch.float64


def data(n: int = 30, d: int = 2, k: int | None = None, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(n + d)
    X = 3.0 * torch.rand(n, d, generator=source, dtype=dtype).to(DEVICE)
    noise = 0.2 * torch.randn(n, 1 if k is None else k, generator=source, dtype=dtype).to(DEVICE)
    y = (
        5.0
        + torch.sin(2.0 * X).sum(1, keepdim=True) * torch.arange(1.0, noise.shape[1] + 1, device=DEVICE)
        + noise
    )
    return X, (y[:, 0] if k is None else y).to(dtype)


def compute_by_formulas(model: GPRegression, X_new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, mean (m, k) and covariance of f in double precision, by inverse and determinant."""
    model, X_new = copy.deepcopy(model).double(), X_new.double()
    with torch.no_grad():
        K = model.kernel(model.X) + model.noise_var * torch.eye(len(model.X), dtype=F64, device=DEVICE)
        mean = model.constant if model.mean == "constant" else torch.zeros(1, dtype=F64, device=DEVICE)
        r = model.y - mean
        inverse, cross = torch_lu.inv(K), model.kernel(model.X, X_new)
        n, k = r.shape
        loss = 0.5 * ((r * (inverse @ r)).sum() + k * torch_lu.logdet(K) + n * k * math.log(2 * math.pi))
        covariance = model.kernel(X_new) - cross.mT @ inverse @ cross
        return loss, mean + cross.mT @ inverse @ r, covariance


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("mean", ["constant", "zero"])
def test_formulas(mean: str, k: int | None, dtype: torch.dtype) -> None:
    X, y = data(k=k, dtype=dtype)
    X_new = data(n=7, dtype=dtype)[0]
    model = GPRegression(X, y, RBF([0.8, 1.2], 2.0), noise_var=0.3, mean=mean, normalise=False)
    loss, mean_new, covariance = compute_by_formulas(model, X_new)
    shape = (7,) if k is None else (7, 3)

    def check(found: Tensor, expected: Tensor) -> None:
        assert_close(found.detach(), expected.to(dtype), HIGHER_ORDER)

    check(model.loss(), loss)
    found = model.predict(X_new)
    check(found.mean, mean_new.reshape(shape))
    check(found.variance, covariance.diagonal())
    check(model.predict(X_new, full_cov=True).covariance, covariance)
    noisy = covariance + model.noise_var.detach() * torch.eye(7, dtype=F64, device=DEVICE)
    check(model.predict(X_new, noise=True).variance, noisy.diagonal())
    check(model.predict(X_new, noise=True, full_cov=True).covariance, noisy)
    y_new = data(n=7, k=k, dtype=dtype)[1]
    columns = list(zip(mean_new.unbind(1), y_new.double().reshape(7, -1).unbind(1), strict=True))
    joint = [torch.distributions.MultivariateNormal(m, noisy).log_prob(y) for m, y in columns]
    check(model.log_prob(X_new, y_new, joint=True), torch.stack(joint).reshape(shape[1:]))
    single = [torch.distributions.Normal(m, noisy.diagonal().sqrt()).log_prob(y) for m, y in columns]
    check(model.log_prob(X_new, y_new), torch.stack(single, 1).reshape(shape))


@pytest.mark.parametrize(
    "kernel", [lambda: RBF([0.8, 1.2], 2.0) + Linear(0.1), lambda: Matern52(0.9) * Constant(1.5) + White(0.1)]
)
def test_gradient_of_the_loss(kernel: Callable[[], Kernel]) -> None:
    X, y = data(n=6, k=2)
    model = GPRegression(X, y, kernel(), noise_var=0.3, normalise=False)
    parameters = [parameter.requires_grad_() for parameter in model.parameters()]

    def loss(*parameters: Tensor) -> Tensor:
        return model.loss()

    assert torch.autograd.gradcheck(loss, parameters)
    assert torch.autograd.gradgradcheck(loss, parameters, fast_mode=True)


def test_chunks_give_the_same() -> None:
    X, y = data()
    model, X_new = GPRegression(X, y, normalise=False), data(n=11)[0]
    whole = model.predict(X_new)
    for chunk in (1, 4, 100):
        for one, other in zip(model.predict(X_new, chunk=chunk), whole, strict=True):
            assert_close(one, other)


def test_gradient_of_predictions_with_respect_to_inputs() -> None:
    X, y = data(n=8)
    model, X_new = GPRegression(X, y, Matern52() + Linear(), normalise=False), data(n=3)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda X_new: tuple(model.predict(X_new)), (X_new,))
    assert torch.autograd.gradcheck(lambda X_new: model.predict(X_new, full_cov=True).covariance, (X_new,))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_predictions_follow_the_parameters() -> None:
    X, y = data()
    model, X_new = GPRegression(X, y, RBF(), normalise=False), data(n=4)[0]
    before = model.predict(X_new)
    assert torch.equal(model.predict(X_new).mean, before.mean)
    model.kernel.lengthscale = 0.3
    assert_close(model.predict(X_new).mean[:, None], compute_by_formulas(model, X_new)[1], HIGHER_ORDER)
    model.fit(steps=5)
    assert_close(model.predict(X_new).mean[:, None], compute_by_formulas(model, X_new)[1], HIGHER_ORDER)


def test_samples_have_mean_and_covariance_of_the_prediction() -> None:
    X, y = data(k=2)
    model, X_new = GPRegression(X, y, RBF(), noise_var=0.3, normalise=False), data(n=4)[0]
    mean, covariance = model.predict(X_new, noise=True, full_cov=True)
    drawn = model.sample(X_new, 20000, noise=True, generator=1)
    assert drawn.shape == (20000, 4, 2)
    deviation = covariance.diagonal().sqrt()[:, None]
    assert ((drawn.mean(0) - mean) / deviation).abs().max() < 0.03
    for output in range(2):
        assert (torch.cov(drawn[..., output].mT) - covariance).abs().max() < 0.05 * covariance.max()
    assert torch.equal(model.sample(X_new, 3, generator=7), model.sample(X_new, 3, generator=7))
    source = torch.Generator(DEVICE).manual_seed(7)
    assert torch.equal(model.sample(X_new, 3, generator=source), model.sample(X_new, 3, generator=7))


def test_samples_at_many_close_points_need_no_jitter() -> None:
    """Their covariance is singular; a JitterWarning would fail this test."""
    X, y = data(n=10, d=1)
    model = GPRegression(X, y, RBF(1.0), noise_var=0.1, normalise=False)
    drawn = model.sample(torch.linspace(0, 3, 200, dtype=F64, device=DEVICE), 2, generator=0)
    assert drawn.shape == (2, 200)
    assert bool(drawn.isfinite().all())


SKLEARN_KERNELS: dict[str, tuple[Callable[[], Kernel], Callable[[Any], Any]]] = {
    "RBF": (lambda: RBF([0.8, 1.2], 1.0), lambda k: k.RBF([0.8, 1.2])),
    "Matern": (lambda: Matern32(0.7, 1.0), lambda k: k.Matern(0.7, nu=1.5)),
    "rational": (lambda: RationalQuadratic(0.7, 1.0, 1.5), lambda k: k.RationalQuadratic(0.7, 1.5)),
    "composite": (
        lambda: Constant(1.7) * Matern52(0.9, 1.0) + Linear(1.0) + Constant(0.25),
        lambda k: k.ConstantKernel(1.7) * k.Matern(0.9, nu=2.5) + k.DotProduct(0.5),
    ),
}


@pytest.mark.parametrize("case", SKLEARN_KERNELS)
def test_scikit_learn_agrees(case: str) -> None:
    pytest.importorskip("sklearn")
    from sklearn import gaussian_process

    ours, theirs = SKLEARN_KERNELS[case]
    X, y = data()
    X_new, y = data(n=9)[0], y - y.mean()
    model = GPRegression(X, y, ours(), noise_var=0.3, mean="zero", normalise=False)
    peer = gaussian_process.GaussianProcessRegressor(
        theirs(gaussian_process.kernels), alpha=0.3, optimizer=None
    ).fit(X.cpu().numpy(), y.cpu().numpy())
    mean, covariance = peer.predict(X_new.cpu().numpy(), return_cov=True)
    assert_close(
        model.loss().detach(), -torch.tensor(peer.log_marginal_likelihood_value_, device=DEVICE), HIGHER_ORDER
    )
    found = model.predict(X_new, full_cov=True)
    assert_close(found.mean, torch.from_numpy(mean).to(DEVICE), HIGHER_ORDER)
    assert_close(found.covariance, torch.from_numpy(covariance).to(DEVICE), HIGHER_ORDER)


def test_fit_finds_what_scikit_learn_finds() -> None:
    pytest.importorskip("sklearn")
    from sklearn import gaussian_process

    kernels = gaussian_process.kernels
    X, y = data(n=60)
    y = y - y.mean()
    model = GPRegression(X, y, RBF([1.0, 1.0]), noise_var=0.1, mean="zero", normalise=False)
    result = model.fit(tolerance=1e-10, criterion="likelihood")
    kernel = kernels.ConstantKernel(1.0) * kernels.RBF([1.0, 1.0]) + kernels.WhiteKernel(0.1)
    peer = gaussian_process.GaussianProcessRegressor(kernel, alpha=0.0).fit(X.cpu().numpy(), y.cpu().numpy())
    assert result.converged
    assert result.loss <= -peer.log_marginal_likelihood_value_ + 1e-6
    theirs = peer.kernel_.k1.k2.length_scale
    assert model.kernel.lengthscale.tolist() == pytest.approx(theirs, rel=1e-2)


def test_normalised_data_give_predictions_and_loss_in_the_units_of_the_data() -> None:
    """The same model by hand: shifted and scaled before, scaled back after."""
    X, y = data(k=2)
    X = X * torch.tensor([1e3, 1e-3], dtype=F64, device=DEVICE) + 50.0
    model = GPRegression(X, y, RBF(), noise_var=0.3, normalise=True)
    scale = y.var(0, correction=0).mean().sqrt()
    by_hand = GPRegression(
        (X - X.mean(0)) / X.std(0, correction=0),
        (y - y.mean(0)) / scale,
        RBF(),
        noise_var=0.3,
        normalise=False,
    )
    assert_close(model.loss(), by_hand.loss() + y.numel() * scale.log(), HIGHER_ORDER)
    found = model.predict(X[:5] + 0.1, noise=True)
    expected = by_hand.predict((X[:5] + 0.1 - X.mean(0)) / X.std(0, correction=0), noise=True)
    assert_close(found.mean, expected.mean * scale + y.mean(0), HIGHER_ORDER)
    assert_close(found.variance, expected.variance * scale**2, HIGHER_ORDER)


def network(dtype: torch.dtype = F64) -> torch.nn.Module:
    layers = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return layers.to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": RBF([0.8, 1.2]) * Periodic(2.0) + Polynomial(3, active_dims=[1]), "mean": "zero"},
        {"normalise": True, "noise_var": 0.01},
        {"kernel": Deep(RBF(), network(), name="net")},
    ],
    ids=["default", "composite", "normalised", "deep"],
)
def test_files(options: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    X, y = data(k=2 if options else None, dtype=dtype)
    model = GPRegression(X, y, **options)
    model.fit(steps=3)
    model.fix("noise_var")
    model.save(tmp_path / "model.pt")
    again = Model.load(tmp_path / "model.pt", modules={"net": network(dtype)})
    assert type(again) is GPRegression
    X_new = data(n=9, dtype=dtype)[0]
    for noise in (False, True):
        for one, other in zip(
            again.predict(X_new, noise=noise), model.predict(X_new, noise=noise), strict=True
        ):
            assert torch.equal(one, other)
    assert torch.equal(again.loss(), model.loss())
    learned = [name for name, value in again.named_parameters() if value.requires_grad]
    assert learned == [name for name, value in model.named_parameters() if value.requires_grad]
    assert "raw_noise_var" not in learned


def test_files_run_no_code_and_are_checked(tmp_path: Path) -> None:
    X, y = data()
    model = GPRegression(X, y, Deep(RBF(), network()), normalise=False)
    path = tmp_path / "model.pt"
    model.save(path)
    assert set(torch.load(path, weights_only=True)) >= {"version", "kind", "config", "tensors"}
    with pytest.raises(lapgrad.OptionError, match="'network'"):
        GPRegression.load(path)
    with pytest.raises(lapgrad.FileFormatError, match="does not fit"):
        GPRegression.load(path, modules={"network": torch.nn.Linear(2, 2)})
    torch.save({"anything": 1}, path)
    with pytest.raises(lapgrad.FileFormatError, match="not a file of a lapgrad model"):
        Model.load(path)
    torch.save(model, path)
    with pytest.raises(lapgrad.FileFormatError, match="not a file of a lapgrad model"):
        Model.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(lapgrad.FileFormatError, match="not a file of a lapgrad model"):
        Model.load(path)
    with pytest.raises(FileNotFoundError):
        Model.load(tmp_path / "nowhere.pt")


def test_files_of_newer_formats_and_other_models_are_refused(tmp_path: Path) -> None:
    X, y = data()
    path = tmp_path / "model.pt"
    GPRegression(X, y, normalise=False).save(path)

    class Other(GPRegression):
        pass

    with pytest.raises(lapgrad.FileFormatError, match="holds a model of class GPRegression"):
        Other.load(path)
    content = torch.load(path, weights_only=True)
    torch.save({**content, "format": 99}, path)
    with pytest.raises(lapgrad.FileFormatError, match="has format 99"):
        Model.load(path)
    write_archive(path, {**content, "kind": "Unheard"})
    with pytest.raises(lapgrad.FileFormatError, match="Import the module"):
        Model.load(path)


def test_plots() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    X, y = data(d=1)
    model = GPRegression(X, y, normalise=False)
    axes = model.fit(steps=5).plot()
    (curve,) = axes.lines
    assert list(curve.get_ydata()) == sorted(curve.get_ydata(), reverse=True)
    axes = model.plot()
    (line,) = axes.lines
    x = torch.from_numpy(line.get_xdata()).to(DEVICE)
    assert_close(torch.from_numpy(line.get_ydata()).to(DEVICE), model.predict(x).mean)
    assert x.min() < X.min() < X.max() < x.max()
    assert len(axes.collections[1].get_offsets()) == len(X)
    assert axes.get_legend() is not None
    pyplot.close("all")
    with pytest.raises(lapgrad.ShapeError, match="one input can be drawn, the data have 2"):
        GPRegression(*data(), normalise=False).plot()
