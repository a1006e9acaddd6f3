"""Priors and bounds of hyper-parameters: what a fit then finds, and files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from device import DEVICE
from tolerances import assert_close
from torch import Tensor
from torch.distributions import Gamma, LogNormal, Normal, Uniform

import lapgrad
from lapgrad.models import BayesianLinearRegression, GPRegression, Model, SparseGPRegression
from lapgrad.models.kernels import RBF, Linear, Matern52

F64 = torch.float64


def data(n: int = 30) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=source, dtype=F64)
    y = torch.sin(6.0 * X[:, 0]) + 0.1 * torch.randn(n, generator=source, dtype=F64)
    return X.to(DEVICE), y.to(DEVICE)


def test_objective_is_loss_minus_log_density() -> None:
    model = GPRegression(*data(), Matern52([0.5, 2.0]), noise_var=0.1)
    without = model.loss()
    assert model.log_prior().item() == 0.0
    lengths, noise = LogNormal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])), Gamma(2.0, 3.0)
    model.set_prior("kernel.lengthscale", lengths)
    model.set_prior("noise_var", noise)
    expected = lengths.log_prob(torch.tensor([0.5, 2.0])).sum() + noise.log_prob(torch.tensor(0.1))
    assert abs(model.log_prior().item() - expected.item()) < 1e-5
    assert_close(model.loss(), without)
    assert_close(model.compute_objective(), model.loss() - model.log_prior())
    assert_close(model.compute_objectives(torch.Size()), model.compute_objective())
    model.set_prior("noise_var", None)
    model.set_prior("kernel.lengthscale", None)
    assert not model.has_priors()


@pytest.mark.parametrize("starts", [1, 4])
def test_a_sharp_prior_decides(starts: int) -> None:
    model = GPRegression(*data(), RBF(ard=True))
    model.set_prior("kernel.lengthscale", LogNormal(math.log(0.7), 1e-4))
    result = model.fit(starts=starts)
    assert ((model.kernel.lengthscale / 0.7).log().abs() < 1e-3).all()
    assert abs(result.loss - model.compute_objective().item()) < 1e-6


@pytest.mark.parametrize("starts", [None, 1, 4])
def test_single_numbers_may_have_priors(starts: int | None) -> None:
    model = GPRegression(*data(), Matern52())
    model.set_prior("noise_var", LogNormal(math.log(0.02), 1e-4))
    model.set_prior("kernel.variance", LogNormal(0.0, 1e-4))
    model.fit(starts=starts)
    assert model.noise_var.item() == pytest.approx(0.02, rel=1e-3)
    assert model.kernel.variance.item() == pytest.approx(1.0, rel=1e-3)


def test_a_prior_shrinks_an_irrelevant_dimension_back() -> None:
    plain, regular = (GPRegression(*data(), RBF(ard=True)) for _ in range(2))
    regular.set_prior("kernel.lengthscale", LogNormal(0.5, 0.5))
    plain.fit(criterion="likelihood")
    regular.fit()
    assert regular.kernel.lengthscale[1] < 5.0 < plain.kernel.lengthscale[1]


@pytest.mark.parametrize("starts", [1, 4])
def test_fits_stay_within_bounds(starts: int) -> None:
    model = GPRegression(*data(), RBF(ard=True) + Linear())
    model.set_bounds("kernel.parts.0.lengthscale", 0.2, 3.0)
    model.set_bounds("noise_var", low=0.05)
    model.set_bounds("kernel.parts.1.variance", high=0.1)
    model.set_bounds("constant", -0.01, 0.01)
    model.fit(starts=starts)
    found = model.hyperparameters()
    lengthscale = found["kernel.parts.0.lengthscale"]
    assert ((lengthscale >= 0.2) & (lengthscale <= 3.0)).all()
    assert lengthscale[1] > 2.0  # the irrelevant dimension runs to its bound
    assert 0.05 <= found["noise_var"] < 0.06
    assert found["kernel.parts.1.variance"] <= 0.1
    assert found["constant"].abs() <= 0.01


@pytest.mark.parametrize(("low", "high"), [(0.1, 2.0), (None, 2.0), (0.1, None)])
def test_bounds_keep_values_inside_and_move_others(low: float | None, high: float | None) -> None:
    kernel = RBF(0.5)
    kernel.set_bounds("lengthscale", low, high)
    assert kernel.lengthscale.item() == pytest.approx(0.5)
    kernel.lengthscale = 1.5
    assert kernel.lengthscale.item() == pytest.approx(1.5)
    for bad in ([0.05] if low else []) + ([2.5] if high else []):
        with pytest.raises(lapgrad.OptionError, match="between"):
            kernel.lengthscale = bad
    kernel.set_bounds("lengthscale", 3.0, 4.0)
    assert 3.0 < kernel.lengthscale.item() < 3.1
    kernel.set_bounds("lengthscale")
    kernel.lengthscale = 100.0
    assert kernel.lengthscale.item() == pytest.approx(100.0)


@pytest.mark.parametrize(("low", "high"), [(1e-6, None), (None, 10.0), (1e-6, 10.0)])
def test_bounds_keep_small_values_inside(low: float | None, high: float | None) -> None:
    kernel = RBF(1e-3)
    kernel.set_bounds("lengthscale", low, high)
    assert kernel.lengthscale.item() == pytest.approx(1e-3)
    kernel.set_bounds("lengthscale", 1e-3 * (1.0 - 1e-9), 1.0)  # gradients vanish so near to an end
    assert kernel.lengthscale.item() > 1.01e-3


def test_what_is_not_given_starts_from_the_data_within_bounds() -> None:
    kernel = Matern52()
    kernel.set_bounds("lengthscale", 0.1, 50.0)
    X, y = data()
    model = GPRegression(X, y, kernel)
    assert model.kernel.lengthscale.item() == pytest.approx(math.sqrt(2.0))


@pytest.mark.parametrize("kind", [GPRegression, SparseGPRegression, BayesianLinearRegression])
def test_files_have_priors_and_bounds(kind: type[Model], tmp_path: Path) -> None:
    X, y = data()
    model = kind(X, y)  # type: ignore[call-arg]
    model.set_prior("noise_var", LogNormal(-1.0, 2.0))
    model.set_bounds("noise_var", 1e-4, 10.0)
    if kind is GPRegression:
        model.set_prior("kernel.lengthscale", Gamma(torch.tensor([1.0, 2.0]), 2.0))
        model.set_bounds("constant", low=-1.0)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert_close(again.log_prior(), model.log_prior())
    for name, value in model.hyperparameters().items():
        assert_close(again.hyperparameters()[name], value)
    with pytest.raises(lapgrad.OptionError, match="between"):
        again.noise_var = 20.0
    again.save(tmp_path / "again")
    assert torch.load(tmp_path / "again", weights_only=True)["format"] == 3
    model.set_bounds("noise_var")
    for name in ("noise_var", "kernel.lengthscale") if kind is GPRegression else ("noise_var",):
        model.set_prior(name, None)
    if kind is GPRegression:
        model.set_bounds("constant")
    model.save(tmp_path / "plain")
    assert torch.load(tmp_path / "plain", weights_only=True)["format"] == 2


class Mine(Normal):
    """Not a class of torch: a file cannot name it."""


def test_mistakes_are_named(tmp_path: Path) -> None:
    model = GPRegression(*data(), RBF(0.5))
    with pytest.raises(lapgrad.OptionError, match="name must be one of"):
        model.set_prior("kernel.lenghtscale", Normal(0.0, 1.0))
    with pytest.raises(lapgrad.OptionError, match="must be a distribution, got float"):
        model.set_prior("kernel.lengthscale", 3.0)  # type: ignore[arg-type]
    with pytest.raises(lapgrad.OptionError, match="no density at its value"):
        model.set_prior("kernel.lengthscale", Uniform(1.0, 2.0))
    with pytest.raises(lapgrad.OptionError, match=r"has shape \(3,\), its value \(\)"):
        model.set_prior("kernel.lengthscale", Normal(torch.zeros(3), torch.ones(3)))
    with pytest.raises(lapgrad.OptionError, match="cannot be between 2 and 1"):
        model.set_bounds("kernel.lengthscale", 2.0, 1.0)
    model.set_prior("kernel.lengthscale", Mine(0.0, 1.0))
    with pytest.raises(lapgrad.OptionError, match="class Mine cannot be written"):
        model.save(tmp_path / "model")


def test_values_are_set_by_name() -> None:
    X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    model = GPRegression(X, X[:, 0], RBF(ard=True, name="near") + Linear())
    model.fix("noise_var")
    model.set_values({"kernel.near.lengthscale": 0.5, "constant": [1.0]}, noise_var=0.2)
    found = model.hyperparameters()
    assert found["kernel.near.lengthscale"].tolist() == pytest.approx([0.5, 0.5])
    assert found["noise_var"].item() == pytest.approx(0.2)
    assert not model.get_parameter("raw_noise_var").requires_grad
    with pytest.raises(lapgrad.OptionError, match=r"name must be one of .*, got 'noise'"):
        model.set_values({"constant": [0.0], "noise": 0.1})
    assert model.constant.item() == 1.0  # nothing is set if a name is wrong
