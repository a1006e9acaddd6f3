"""Bad data: errors name what cannot be learned from, and unusual but valid data give the right answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tolerances import HIGHER_ORDER, assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import (
    BatchGPRegression,
    BayesianLinearRegression,
    DeepGPRegression,
    GPRegression,
    LinearGaussianSSM,
    Model,
    MultiTaskBLR,
    SparseGPRegression,
)
from lapgrad.models.components import AR, Seasonal
from lapgrad.models.kernels import RBF, Kernel, Linear

X, Y = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6.0).double()


def set_entry(values: Tensor, row: int, entry: float) -> Tensor:
    changed = values.clone()
    changed[row] = entry
    return changed


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: GPRegression(set_entry(X, 3, math.nan), Y), ValueError, "GPRegression: X .* in row 3"),
        (lambda: GPRegression(X, set_entry(Y, 4, math.inf)), ValueError, "GPRegression: y .* in row 4"),
        (lambda: GPRegression(X * math.nan, Y), ValueError, "in rows 0, 1, 2, 3, 4 and 1 more"),
        (lambda: GPRegression(X[:0], Y[:0]), ValueError, "X has no rows"),
        (
            lambda: GPRegression(X, Y[:5]),
            ValueError,
            r"y must have shape \(n,\) or \(n, k\) with n = 6 .*\(5,\)",
        ),
        (lambda: GPRegression(X, Y[None]), ValueError, r"with n = 6 like X, got \(1, 6\)"),
        (lambda: GPRegression(X, Y[:, None, None]), ValueError, r"got \(6, 1, 1\)"),
        (lambda: GPRegression(X[None], Y), ValueError, r"X must have shape \(n, d\) or \(n,\)"),
        (lambda: GPRegression(X, Y.float()), TypeError, "same dtype, got X torch.float64, y torch.float32"),
        (lambda: GPRegression(X.long(), Y), TypeError, "X has dtype torch.int64"),
        (lambda: GPRegression({"a": 1.0}, Y), TypeError, "X must be a torch.Tensor, got dict"),
        (
            lambda: GPRegression([torch.ones((), requires_grad=True)] * 6, Y),
            TypeError,
            "X must hold real numbers: .* got list",
        ),
        (lambda: GPRegression([["a"]], Y), TypeError, "X must hold real numbers: .* got list"),
        (
            lambda: GPRegression(X, Y, noise_var=-1.0),
            ValueError,
            "noise_var must be greater than noise_floor",
        ),
        (lambda: GPRegression(X, Y, mean="quadratic"), ValueError, "'constant', 'linear', 'zero'"),
        (lambda: GPRegression(X, Y, RBF), ValueError, "kernel must be a Kernel, got the class RBF"),
        (lambda: GPRegression(X, Y).predict(X[:, :1]), ValueError, "must have 2 columns like the training"),
        (lambda: GPRegression(X, Y).predict(X.float()), TypeError, "same dtype"),
        (lambda: GPRegression(X, Y).predict(set_entry(X, 1, math.nan)), ValueError, "X_new .* in row 1"),
        (lambda: GPRegression(X, Y).predict(X, chunk=0), ValueError, "chunk must be positive"),
        (lambda: GPRegression(X, Y).log_prob(X, Y[:, None].expand(6, 2)), ValueError, "must have 1 outputs"),
        (lambda: GPRegression(X, Y).sample(X, 1, generator="seed"), ValueError, "generator must be"),
        (lambda: GPRegression(X, Y).sample(X, -1), ValueError, "count must not be negative"),
        (lambda: GPRegression(X, Y).predict(X, noise=0.1), ValueError, "noise must be True, False, or"),
        (lambda: GPRegression(X, Y).predict(X, full_cov="no"), ValueError, "full_cov must be True or False"),
        (lambda: GPRegression(X, Y, normalise="no"), ValueError, "normalise must be True or False"),
        (lambda: GPRegression(X, Y).fit(steps=2.5), ValueError, "steps must be a positive integer, got 2.5"),
        (lambda: GPRegression(X, Y).fit(lr="fast"), ValueError, "lr must be numbers .* got 1e-06 and 'fast'"),
        (lambda: GPRegression(X, Y).fit(tolerance="1"), ValueError, "tolerance and lr must be numbers"),
        (lambda: GPRegression(X, Y).fit(callback=3), ValueError, "callback must be a function, got 3"),
        (lambda: LinearGaussianSSM(Y, 1).fit(lr="fast"), ValueError, "tolerance and lr must be numbers"),
        (
            lambda: GPRegression(X, Y).predict(X, chunk=1.5),
            ValueError,
            "chunk must be .* an integer, got 1.5",
        ),
        (lambda: GPRegression(X, Y, noise_var="low"), ValueError, "noise_var must be a number, got 'low'"),
        (lambda: GPRegression(X, Y, noise_floor=-1.0), ValueError, "noise_floor must be a number, zero or"),
        (lambda: GPRegression(X, Y).predict(X, part="trend"), ValueError, "no part of the kernel has a name"),
        (lambda: RBF(lengthscale="long"), ValueError, "lengthscale must be a number, or numbers"),
        (lambda: RBF(active_dims=1), ValueError, "active_dims must be a list of columns, got 1"),
        (lambda: GPRegression(X, Y).half().loss(), TypeError, "has dtype torch.float16"),
        (lambda: GPRegression(X, Y).bfloat16().loss(), TypeError, "has dtype torch.bfloat16"),
        (lambda: MultiTaskBLR([X, Y]), ValueError, r"tasks must be a list of pairs \(X, y\), got Tensor"),
        (lambda: LinearGaussianSSM(Y, 1).forecast(2, noise=0.1), ValueError, "noise must be True or False"),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, lapgrad.LapgradError)


def test_fits_need_gradients() -> None:
    model = GPRegression(X, Y)
    with torch.inference_mode(), pytest.raises(lapgrad.OptionError, match="inference_mode"):
        model.fit()


def make_models() -> list[Model]:
    return [
        GPRegression(X, Y),
        SparseGPRegression(X, Y, inducing=3, generator=0),
        BatchGPRegression(X, torch.stack([Y, Y.sin()])),
    ]


def test_integers_of_numpy_are_numbers() -> None:
    three = np.int64(3)
    x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)
    sparse = SparseGPRegression(x, x.sin(), inducing=three, generator=three)
    sparse.fit(starts=three)
    assert sparse.predict(x, chunk=three).mean.shape == (40,)
    assert GPRegression(x, x.sin()).predict(x, chunk=three).mean.shape == (40,)
    DeepGPRegression(x, x.sin(), inducing=three, generator=0).fit(steps=three)
    series = LinearGaussianSSM(x.sin(), Seasonal(three) + AR(three))
    assert series.forecast(three).mean.shape == (3,)
    assert json.loads(json.dumps(series.config()))["component"]["config"]["parts"][0]["config"] == {
        "period": 3
    }


@pytest.mark.parametrize(
    "kind", [GPRegression, SparseGPRegression, DeepGPRegression, BayesianLinearRegression]
)
def test_noise_that_is_not_given_starts_above_its_floor(kind: Callable[..., Model]) -> None:
    assert kind(X, Y, noise_floor=3.0).noise_var.item() == pytest.approx(6.0)
    low, without = kind(X, Y, noise_floor=1e-3), kind(X, Y)
    assert low.noise_var.item() == pytest.approx(without.noise_var.item())


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 2.0])
def test_levels_of_coverage_are_probabilities(level: float) -> None:
    with pytest.raises(lapgrad.OptionError, match="level must be between 0 and 1"):
        GPRegression(X, Y).leave_one_out().compute_coverage(level)


def test_there_must_be_something_to_learn() -> None:
    for model in make_models():
        model.requires_grad_(False)
        with pytest.raises(lapgrad.OptionError, match="nothing to fit"):
            model.fit()


def test_inducing_inputs_may_be_all_that_is_learned() -> None:
    x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)
    model = SparseGPRegression(x, x.sin(), inducing=x[:6], noise_var=0.01)
    model.fix("constant", "noise_var", "kernel.lengthscale", "kernel.variance")
    before = model.loss().item()
    assert model.fit().loss < before - 1.0
    assert model.noise_var.item() == pytest.approx(0.01)


@pytest.mark.filterwarnings("ignore:.*the fit explains nothing:lapgrad.FitWarning")
def test_fits_turn_gradients_on() -> None:
    for model in make_models():
        with torch.no_grad():
            assert model.fit().converged


def test_noise_of_new_observations_may_be_an_array() -> None:
    model = GPRegression(X, Y)
    noise = 0.1 * np.arange(1.0, 7.0)
    of_array, of_tensor = (model.predict(X, noise=given) for given in (noise, torch.from_numpy(noise)))
    assert torch.equal(of_array.variance, of_tensor.variance)


@pytest.mark.filterwarnings("ignore:.*all targets are equal:lapgrad.FitWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_observation(dtype: torch.dtype) -> None:
    """The posterior of one observation: the mean is shrunk towards that of the process."""
    x, y = torch.zeros(1, dtype=dtype), torch.full((1,), 3.0, dtype=dtype)
    model = GPRegression(x, y, RBF(1.0, 2.0), noise_var=1.0, mean="zero", normalise=False)
    found = model.predict(x)
    assert_close(found.mean, torch.tensor([2.0], dtype=dtype))
    assert_close(found.variance, torch.tensor([2.0 - 4.0 / 3.0], dtype=dtype))
    model = GPRegression(x, y)
    model.fit(steps=20)
    assert_close(model.predict(x).mean, y, HIGHER_ORDER)


def test_no_new_inputs() -> None:
    model = GPRegression(X, Y)
    assert model.predict(X[:0]).mean.shape == (0,)
    assert model.predict(X[:0], full_cov=True).covariance.shape == (0, 0)
    assert model.sample(X[:0], 3).shape == (3, 0)
    assert model.log_prob(X[:0], Y[:0]).shape == (0,)


@pytest.mark.parametrize("normalise", [False, True])
def test_constant_columns_change_nothing(normalise: bool) -> None:
    wide = torch.cat([X, torch.full((6, 1), 0.1).double()], 1)
    one = GPRegression(wide, Y, RBF(0.5), normalise=normalise)
    other = GPRegression(X, Y, RBF(0.5), normalise=normalise)
    assert_close(one.loss(), other.loss())
    assert_close(one.predict(wide).mean, other.predict(X).mean)
    # A new value in the constant column is a finite distance away from the others.
    far = one.predict(wide + torch.tensor([0.0, 0.0, 1.0]).double())
    assert bool(far.mean.isfinite().all())
    assert bool((far.variance > one.predict(wide).variance).all())
    one.fit(steps=10)


@pytest.mark.filterwarnings("ignore:.*all targets are equal:lapgrad.FitWarning")
def test_constant_targets() -> None:
    model = GPRegression(X, torch.full((6,), 7.0).double(), normalise=True)
    model.fit(steps=20)
    assert_close(model.predict(X + 0.1).mean, torch.full((6,), 7.0).double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_duplicated_rows_count_as_two_observations(dtype: torch.dtype) -> None:
    """Two observations at one place are one of half the noise."""
    x, y = torch.tensor([0.0, 1.0], dtype=dtype), torch.tensor([1.0, 2.0], dtype=dtype)
    twice = GPRegression(
        torch.cat([x, x]), torch.cat([y, y]), RBF(1.0, 1.0), noise_var=0.2, mean="zero", normalise=False
    )
    once = GPRegression(x, y, RBF(1.0, 1.0), noise_var=0.1, mean="zero", normalise=False)
    for one, other in zip(twice.predict(x + 0.3), once.predict(x + 0.3), strict=True):
        assert_close(one, other)
    twice.fit(steps=10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_data_without_noise_fit_without_jitter(dtype: torch.dtype) -> None:
    """A JitterWarning would fail this test."""
    x = torch.linspace(0, 6, 40, dtype=dtype)
    model = GPRegression(x, torch.sin(x), normalise=True)
    model.fit()
    assert (model.predict(x + 0.05).mean - torch.sin(x + 0.05)).abs().max() < 1e-2
    assert model.jitter == 0.0


def test_jitter_is_reported() -> None:
    """The covariance of 30 copies of a point, with noise below rounding, is singular."""
    x, y = torch.zeros(30).double(), torch.ones(30).double()
    model = GPRegression(x, y, RBF(), noise_var=1e-20, noise_floor=1e-21, mean="zero")
    with pytest.warns(lapgrad.JitterWarning, match=r"not positive definite .* of the mean of its diagonal"):
        value = model.loss()
    assert 0.0 < model.jitter < 1e-10
    assert math.isfinite(value.item())
    with pytest.warns(lapgrad.JitterWarning):
        mean, _ = model.predict(x[:1])
    assert abs(mean.item() - 1.0) < 1e-6
    model.fix("noise_var")
    with pytest.warns(lapgrad.JitterWarning, match=r"GPRegression\.fit"):
        model.fit(steps=3)
    assert model.jitter > 0.0


class Difference(Kernel):
    """A symmetric function of two points that is not positive semi-definite."""

    def matrix(self, scalars: object, F: Tensor, G: Tensor | None) -> Tensor:
        return (F - (F if G is None else G).mT).abs()

    def diagonal(self, scalars: object, F: Tensor) -> Tensor:
        return torch.zeros_like(F[..., 0])


def test_kernels_that_are_not_positive_semi_definite_are_named() -> None:
    model = GPRegression(X[:, 0], Y, Difference(), noise_var=1e-3)
    with pytest.raises(
        lapgrad.NotPositiveDefiniteError, match=r"GPRegression: .* Is the kernel positive semi-"
    ):
        model.loss()
    with pytest.raises(lapgrad.FitError, match=r"step 1: .*positive semi-definite"):
        model.fit()


class Undefined(Difference):
    def matrix(self, scalars: object, F: Tensor, G: Tensor | None) -> Tensor:
        return super().matrix(scalars, F, G) * math.nan


def test_kernels_that_are_not_finite_are_named() -> None:
    with pytest.raises(lapgrad.NonFiniteError, match="contains NaN"):
        GPRegression(X[:, 0], Y, Undefined()).loss()


def test_linear_functions_in_more_dimensions_than_observations() -> None:
    wide = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).double()
    model = GPRegression(wide, Y[:4], Linear(), noise_var=1e-3, mean="zero")
    assert (model.predict(wide).mean - Y[:4]).abs().max() < 1e-2
