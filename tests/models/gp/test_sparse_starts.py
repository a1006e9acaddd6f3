"""The second start of sparse Gaussian process regression."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device import DEVICE
from tolerances import assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import GPRegression, SparseGPRegression
from lapgrad.models._gp import sparse_starts
from lapgrad.models.kernels import RBF, Matern52

F64 = torch.float64


def data(n: int = 80) -> tuple[Tensor, Tensor]:
    """Return a function that changes quickly: a smooth one and noise explain it, too, but not as well."""
    X = torch.rand(n, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = torch.sin(3.0 * X[:, 0]) + torch.sin(40.0 * X[:, 0])
    return X.to(DEVICE), y.to(DEVICE)


def make_model(**options: Any) -> SparseGPRegression:
    """Return a model at a start from which a fit explains the quick changes as noise."""
    kernel = RBF(lengthscale=3.0)
    return SparseGPRegression(*data(), kernel, inducing=30, noise_var=1.0, generator=0, **options)


@pytest.mark.filterwarnings("ignore::lapgrad.FitWarning")
def test_a_second_start_finds_what_the_first_has_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sparse_starts.make_exact

    def make_exact(*arguments: Any) -> GPRegression:
        exact = original(*arguments)
        exact.kernel.lengthscale, exact.noise_var = 0.1, 0.01  # around which starts are drawn
        return exact

    monkeypatch.setattr(sparse_starts, "make_exact", make_exact)
    once, twice = make_model(), make_model()
    first = once.fit(starts=1)
    result = twice.fit()
    assert first.converged
    assert result.loss < first.loss - 50.0
    assert result.steps > first.steps
    assert abs(twice.loss().item() - result.loss) < 1e-6 * abs(result.loss)


@pytest.mark.filterwarnings("ignore::lapgrad.FitWarning")
def test_the_first_start_is_kept_if_it_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(exact: object, model: SparseGPRegression, *others: object) -> None:
        model.noise_var = 100.0
        model.fix("noise_var")

    monkeypatch.setattr(sparse_starts, "copy_parameters", spoil)
    once, twice = make_model(), make_model()
    first, result = once.fit(starts=1), twice.fit()
    assert result.loss == first.loss
    for (name, value), other in zip(once.named_parameters(), twice.parameters(), strict=True):
        assert torch.equal(value, other), name


def test_fits_with_limits_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("there should be no second start")

    monkeypatch.setattr(sparse_starts, "make_exact", fail)
    model = make_model()
    model.fit(steps=3)
    model.fit(callback=lambda step, loss: step >= 2)
    model.fit("adam", steps=2)
    model.fit(starts=1, steps=2)
    with pytest.raises(lapgrad.OptionError, match="starts must be a positive number"):
        model.fit(starts=0)


def test_what_is_fixed_stays() -> None:
    X, y = data()
    model = SparseGPRegression(X, y, Matern52(), inducing=X[:20], mean="linear", generator=0)
    model.fix("inducing", "noise_var", "slope")
    before = {name: model.hyperparameters()[name].clone() for name in ("inducing", "noise_var", "slope")}
    inputs = (X - model.x_shift) / model.x_scale
    outputs = (y[:, None] - model.y_shift) / model.y_scale
    exact = sparse_starts.make_exact(model, inputs, outputs, torch.Generator().manual_seed(0))
    assert not exact.raw_noise_var.requires_grad
    assert not exact.raw_slope.requires_grad
    assert exact.raw_constant.requires_grad
    sparse_starts.copy_parameters(exact, model, inputs, torch.Generator().manual_seed(0))
    for name, value in before.items():
        assert_close(model.hyperparameters()[name], value)
