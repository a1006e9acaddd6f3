"""Hyper-parameters that the user has not given start from the data, and fits that explain nothing warn."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from device import DEVICE
from torch import Tensor

import lapgrad
from lapgrad.models import GPRegression, SparseGPRegression
from lapgrad.models.kernels import (
    RBF,
    Constant,
    Deep,
    Kernel,
    Linear,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    White,
)

F64 = torch.float64


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=source, dtype=F64)
    y = torch.sin(6.0 * X[:, 0]) + X[:, 1] + 0.05 * torch.randn(n, generator=source, dtype=F64)
    return X.to(DEVICE), y.to(DEVICE)


KERNELS = [
    lambda: Matern52(),
    lambda: Matern52(ard=True),
    lambda: RationalQuadratic() + White(),
    lambda: Constant() * RBF(ard=True) + Linear(),
    lambda: 2.0 * RBF() + 1.0,
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_units_of_the_data_do_not_matter(kernel: type[Kernel]) -> None:
    """Kernels that are given explicitly reach the same likelihood in any units, up to the change of units."""
    X, y = data()
    plain = GPRegression(X, y, kernel(), normalise=False)
    other = GPRegression(1e4 * X, 1e3 * y, kernel(), normalise=False)
    loss = plain.fit().loss
    assert abs(other.fit().loss - 60 * math.log(1e3) - loss) < 0.05
    assert loss < -20.0


def test_sparse_models_start_from_the_data_as_well() -> None:
    X, y = data()
    model = SparseGPRegression(1e4 * X, y, Matern52(ard=True), inducing=20, normalise=False, generator=0)
    assert model.kernel.lengthscale.shape == (2,)
    assert bool((model.kernel.lengthscale > 1e3).all())
    assert model.fit(steps=60).loss < -10.0


def test_what_is_given_stays() -> None:
    X, y = data()
    model = GPRegression(X, y, RBF(0.3) + Periodic(period=2.0, variance=0.5) * Linear())
    found = model.hyperparameters()
    assert found["kernel.parts.0.lengthscale"].item() == pytest.approx(0.3)
    assert found["kernel.parts.1.parts.0.period"].item() == pytest.approx(2.0)
    assert found["kernel.parts.1.parts.0.variance"].item() == pytest.approx(0.5)
    assert found["kernel.parts.0.variance"].item() == pytest.approx(0.5)  # half of the variance of y
    kernel = RBF()
    kernel.lengthscale = 7.0
    assert GPRegression(X, y, kernel).kernel.lengthscale.item() == pytest.approx(7.0)
    kernel.lengthscale = None
    assert GPRegression(X, y, kernel).kernel.lengthscale.item() == pytest.approx(math.sqrt(2.0))
    with pytest.raises(lapgrad.OptionError, match="noise_var must be greater"):
        GPRegression(X, y).noise_var = None


def test_one_lengthscale_per_dimension() -> None:
    X, y = data()
    kernel = RBF(0.5, ard=True)
    assert kernel(X).shape == (60, 60)
    model = GPRegression(X, y, kernel)
    assert model.kernel.lengthscale.tolist() == pytest.approx([0.5, 0.5])
    assert GPRegression(X, y, Linear(ard=True)).kernel.variance.shape == (2,)
    assert GPRegression(X, y, Matern52(ard=True, active_dims=[1])).kernel.lengthscale.shape == (1,)
    assert GPRegression(X, y).kernel.lengthscale.shape == (2,)


def test_prior_variance_is_that_of_the_data() -> None:
    X, y = data()
    for kernel in (
        Linear(),
        Linear(ard=True),
        Polynomial(3),
        RBF() * Linear(),
        RBF() ** 2,
        Deep(RBF(), torch.nn.Tanh()),
    ):
        model = GPRegression(10.0 * X, 5.0 * y, kernel, normalise=False)
        ratio = (model.kernel.diag(model.X).mean() / (25.0 * y.var())).item()
        assert 0.3 < ratio < 50.0 if isinstance(kernel, type(RBF() * Linear())) else 0.9 < ratio < 1.1


def test_strongest_period_is_found() -> None:
    source = torch.Generator().manual_seed(0)
    x = 50.0 * torch.rand(200, generator=source, dtype=F64).to(DEVICE)
    y = 0.3 * x + torch.sin(2.0 * math.pi * x / 3.7)
    model = GPRegression(x, y - 0.3 * x, Periodic(), normalise=False)
    assert model.kernel.period.item() == pytest.approx(3.7, rel=0.02)
    kernel = Periodic()
    kernel.start_from_data(x, y)
    assert kernel.period.item() == pytest.approx(3.7, rel=0.02)
    kernel = Periodic()
    kernel.start_from_data(torch.ones(3, dtype=F64), torch.zeros(3, dtype=F64))
    assert kernel.period.item() == 1.0


def test_a_fit_that_explains_nothing_warns() -> None:
    X, y = data()
    with pytest.warns(lapgrad.FitWarning, match="explains nothing"):
        GPRegression(1e6 * X, y, Matern52(1.0), normalise=False).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPRegression(1e6 * X, y, Matern52(), normalise=False).fit()


@pytest.mark.parametrize("rows", [1, 30])
def test_equal_targets_are_named_by_a_warning(rows: int) -> None:
    X, y = data()
    X, y = X[:rows], torch.full_like(y[:rows], 0.1)
    for model in (GPRegression(X, y), SparseGPRegression(X, y, inducing=5, generator=0)):
        with pytest.warns(lapgrad.FitWarning, match="all targets are equal"):
            model.fit()
