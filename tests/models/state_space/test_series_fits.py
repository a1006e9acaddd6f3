"""Fits of state space models reach the optimum, and say so only there. Figures of statsmodels 0.15.0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device import DEVICE
from torch import Tensor

import lapgrad
from lapgrad.demo.series import load_airline_passengers, load_nile
from lapgrad.models import LinearGaussianSSM
from lapgrad.models._state_space import starts as _starts
from lapgrad.models.components import (
    AR,
    Component,
    Cycle,
    HarmonicSeasonal,
    LocalLevel,
    LocalLinearTrend,
    Seasonal,
)


def airline(length: int = 144) -> Tensor:
    return torch.from_numpy(np.log(load_airline_passengers()[1]))[:length].to(DEVICE)


def nile() -> Tensor:
    return torch.from_numpy(load_nile()[1]).to(DEVICE)


def leave_out(y: Tensor, share: float = 0.13) -> Tensor:
    """Set a part of the values to NaN, by the generator of NumPy with seed 0."""
    y = y.clone()
    y[np.random.default_rng(0).permutation(len(y))[: int(share * len(y))]] = torch.nan
    return y


def trend_and_season() -> Component:
    return LocalLinearTrend() + Seasonal(12)


#: Series, component, and the log likelihood that UnobservedComponents(..., use_exact_diffuse=True).fit()
#: reaches.
FITS: dict[str, tuple[Any, Any, float]] = {
    "nile, level": (nile, LocalLevel, -633.4646),
    "nile, trend": (nile, LocalLinearTrend, -631.7107),
    "nile with gaps, level": (lambda: leave_out(nile()), LocalLevel, -551.0648),
    "nile with gaps, trend": (lambda: leave_out(nile()), LocalLinearTrend, -549.2521),
    "airline, 120 months": (lambda: airline(120), trend_and_season, 173.5424),
    "airline": (airline, trend_and_season, 217.4203),
    "airline, no logarithms": (lambda: airline().exp(), trend_and_season, -580.9042),
    "airline with gaps": (lambda: leave_out(airline()), trend_and_season, 183.8774),
    "airline with gaps, 120 months": (lambda: leave_out(airline(120)), trend_and_season, 143.3912),
}


@pytest.mark.parametrize("name", FITS)
def test_reaches_the_optimum(name: str) -> None:
    make, component, wanted = FITS[name]
    model = LinearGaussianSSM(make(), component())
    result = model.fit()
    assert result.converged, result.reason
    assert -result.loss > wanted - 1e-3
    assert model.loss().item() == pytest.approx(result.loss, abs=1e-8)
    assert all(later < earlier for earlier, later in zip(result.history, result.history[1:], strict=False))


@pytest.mark.parametrize("noise_var", [1e-8, 1.0])
def test_leaves_wrong_starts(noise_var: float) -> None:
    """The logarithm of a variance of nearly zero has no gradient: a fit would stay there."""
    model = LinearGaussianSSM(
        airline(120), LocalLinearTrend(1e-3, 1e-6) + Seasonal(12, 1e-9), noise_var=noise_var
    )
    assert -model.fit().loss > 173.5414
    assert model.noise_var.item() == pytest.approx(1.407e-4, rel=0.05)


def test_more_iterations_gain_nothing() -> None:
    model = LinearGaussianSSM(airline(), trend_and_season())
    first = model.fit()
    assert first.loss - model.fit(tolerance=0.0, steps=300).loss < 1e-3


def test_scale_of_the_data_does_not_matter() -> None:
    """y times c has the log likelihood of y, less log c for each observation but those of the start."""
    plain = LinearGaussianSSM(airline(60), trend_and_season()).fit()
    large = LinearGaussianSSM(1e6 * airline(60), trend_and_season()).fit()
    assert large.loss - (60 - 13) * np.log(1e6) == pytest.approx(plain.loss, abs=1e-3)


def test_a_large_number_added_to_the_data_does_not_matter() -> None:
    y = airline(60)
    models = [LinearGaussianSSM(one, trend_and_season()) for one in (y, y + 1e8)]
    plain, shifted = (model.fit().loss for model in models)
    assert shifted == pytest.approx(plain, abs=1e-3)
    mean = models[1].forecast(12).mean - 1e8
    assert float((mean - models[0].forecast(12).mean).abs().max()) < 1e-4


def test_limits_and_callbacks() -> None:
    y = nile()
    result = LinearGaussianSSM(y, LocalLevel()).fit(steps=4)
    assert (result.steps, result.converged) == (4, False)
    assert "4 steps" in result.reason
    seen = []
    result = LinearGaussianSSM(y, LocalLevel()).fit(
        callback=lambda step, loss: seen.append(loss) or len(seen) == 3
    )
    assert not result.converged
    assert result.history == seen
    for options in ({"steps": 0}, {"tolerance": -1.0}, {"lr": -1.0}):
        with pytest.raises(lapgrad.OptionError):
            LinearGaussianSSM(y, LocalLevel()).fit(**options)
    fixed = LinearGaussianSSM(y, LocalLevel())
    fixed.fix()
    with pytest.raises(lapgrad.OptionError, match="nothing to fit"):
        fixed.fit()


def test_fixed_parameters_stay() -> None:
    model = LinearGaussianSSM(nile(), LocalLevel(1000.0))
    model.fix("level.variance")
    model.fit()
    assert model.component.variance.item() == pytest.approx(1000.0)
    assert model.noise_var.item() == pytest.approx(15900, rel=0.05)


def test_variances_stay_within_bounds() -> None:
    """The start is in the middle of the bounds: the stored logit is 0, as the logarithm of 1 is."""
    model = LinearGaussianSSM(nile(), LocalLevel(1000.0), noise_var=1e4)
    model.set_bounds("level.variance", 10.0, 1e5)
    model.set_bounds("noise_var", 1e2, 1e6)
    result = model.fit()
    assert -result.loss > -633.4646 - 1e-3
    assert model.loss().item() == pytest.approx(result.loss, abs=1e-8)
    model.set_bounds("level.variance", None, 800.0)
    assert model.fit().loss > result.loss
    assert model.component.variance.item() == pytest.approx(800.0, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "name", "bounds", "ends"),
    [
        (Cycle, "cycle.damping", (0.5, None), (0.5, 1.0)),
        (Cycle, "cycle.damping", (None, 0.5), (0.0, 0.5)),
        (lambda: AR(1), "ar.partial", (None, 0.5), (-1.0, 0.5)),
    ],
)
def test_one_bound_leaves_the_other_end_of_an_interval(
    make: Any, name: str, bounds: tuple[float | None, float | None], ends: tuple[float, float]
) -> None:
    model = LinearGaussianSSM(nile(), LocalLevel() + make())
    model.set_bounds(name, *bounds)
    raw = dict(model.named_parameters())[f"component.parts.1.raw_{name.split('.')[1]}"]
    for sign, end in zip((-1.0, 1.0), ends, strict=True):
        with torch.no_grad():
            raw.fill_(30.0 * sign)
        assert model.hyperparameters()[name].item() == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize("name", ["cycle.frequency", "cycle.period"])
def test_bounds_of_a_period_are_an_option(name: str) -> None:
    model = LinearGaussianSSM(nile(), LocalLevel() + Cycle(10.0))
    with pytest.raises(lapgrad.OptionError, match="an option of Cycle: period_bounds"):
        model.set_bounds(name, 0.3, 0.9)
    with pytest.raises(lapgrad.OptionError, match=r"noise_var cannot be below -1\.0"):
        model.set_bounds("noise_var", None, -1.0)


def test_the_ratio_of_two_variances_may_have_two_optima() -> None:
    """Between them the likelihood is lower by 0.2 only, and a start at the first one stays there."""
    y = airline()
    y[[12, 71, 128]] = torch.nan
    made = [LinearGaussianSSM(y, LocalLinearTrend(0) + Seasonal(12, 0)) for _ in range(3)]
    for model, ratio in zip(made[1:], (0.007, 0.14), strict=True):
        model.set_values({"trend.slope_variance": 1e-3 * ratio, "noise_var": 1e-3})
    losses = [model.fit().loss for model in made]
    assert max(losses) - min(losses) < 1e-3


@pytest.mark.parametrize("partial", [-0.6, 0.6])
def test_the_sign_of_an_autocorrelation_does_not_depend_on_the_start(partial: float) -> None:
    source = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 200, generator=source, dtype=torch.float64)
    steps = [torch.zeros((), dtype=torch.float64)]
    for value in noise[0]:
        steps.append(-0.7 * steps[-1] + value)
    y = (torch.stack(steps[1:]) + 0.5 * noise[1].cumsum(0)).to(DEVICE)
    model = LinearGaussianSSM(y, LocalLevel() + AR(1))
    model.set_values({"ar.partial": [partial]})
    result = model.fit()
    assert model.component.components[1].coefficients.item() < -0.5
    assert result.converged


@pytest.mark.parametrize(("first", "last"), [(16, 71), (20, 87)])
def test_autoregressions_that_oscillate_are_found(first: int, last: int) -> None:
    """The likelihood has an optimum with noise that is an autoregression, and a better one with a cycle."""
    made = [LinearGaussianSSM(nile()[first:last], LocalLevel() + AR(2)) for _ in range(2)]
    cycle = {"level.variance": 2000.0, "ar.partial": [0.7, -0.7], "ar.variance": 1000.0, "noise_var": 1e4}
    made[1].set_values(cycle)
    losses = [model.fit().loss for model in made]
    assert abs(losses[0] - losses[1]) < 1e-3


def test_one_of_two_variances_that_has_vanished_is_raised() -> None:
    model = LinearGaussianSSM(nile(), LocalLevel(1e-4), noise_var=16000.0)
    assert -model.fit().loss > -633.4646 - 1e-3


def test_starts_with_exchanged_variances_have_none_that_vanishes() -> None:
    """A variance of nearly zero (e^-27) has no gradient and would stay there, so it is raised."""
    numbers = [_starts.LearnedNumber(True, 1.0, True)] * 3 + [_starts.LearnedNumber(False, 1.0, True)]
    points = _starts._swap_largest(numbers, np.array([-1.0, -27.0, -3.0, 0.3]))
    assert [point.tolist() for point in points] == [[-7.0, -1.0, -3.0, 0.3], [-7.0, -7.0, -1.0, 0.3]]


def test_a_single_variance_takes_two_evaluations() -> None:
    model = LinearGaussianSSM(nile(), LocalLevel(), noise_var=0)
    result = model.fit()
    steps = nile().diff()
    assert model.component.variance.item() == pytest.approx(steps.square().mean().item(), rel=1e-12)
    assert result.converged
    assert result.steps == 2
    # The noise is fixed, so that multiplying all variances by a number is no move of the fit.
    model = LinearGaussianSSM(nile(), LocalLevel(), noise_var=15000.0)
    model.fix("noise_var")
    assert model.fit().steps > 2
    assert model.loss().item() == pytest.approx(633.4648, abs=1e-2)


def test_a_cycle_that_the_data_do_not_have_is_named() -> None:
    with pytest.warns(lapgrad.FitWarning, match=r"cycle.damping has become .* Cycle\(stationary=True\)"):
        LinearGaussianSSM(nile(), LocalLevel() + Cycle()).fit(steps=300)
    assert LinearGaussianSSM(nile(), LocalLevel() + Cycle(stationary=True)).fit().converged


@pytest.mark.parametrize("y", [torch.full((30,), 3.0), torch.arange(30.0), torch.zeros(30)])
def test_a_series_without_noise_is_named(y: Tensor) -> None:
    model = LinearGaussianSSM(y.to(DEVICE, torch.float64), LocalLinearTrend())
    with pytest.warns(lapgrad.FitWarning, match="the likelihood has no maximum"):
        model.fit()


@pytest.mark.filterwarnings("ignore:.*the likelihood has no maximum:lapgrad.FitWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: AR(1),
        lambda: AR(2),
        lambda: AR(3),
        lambda: LocalLevel() + AR(2),
        lambda: LocalLevel() + Cycle(stationary=True),
        lambda: Cycle(),
    ],
)
@pytest.mark.parametrize("period", [12, 2])
def test_processes_on_their_way_to_a_wave_that_never_fades(make: Any, period: int) -> None:
    """Near there the variance of a stationary process is infinite, or has lost its digits."""
    y = torch.cos(2.0 * torch.pi / period * torch.arange(100, dtype=torch.float64, device=DEVICE))
    model = LinearGaussianSSM(y, make())
    result = model.fit()
    assert model.loss().item() == pytest.approx(result.loss, rel=0.01)
    assert model.forecast(2).mean.isfinite().all()


def test_a_variance_that_is_none_is_named() -> None:
    model = LinearGaussianSSM(nile(), LocalLevel())
    with pytest.raises(lapgrad.OptionError, match=r"LinearGaussianSSM: noise_var must be .* got -1.0"):
        model.set_values(noise_var=-1.0)
    with pytest.raises(lapgrad.OptionError, match=r"LinearGaussianSSM: noise_var must be .* got nan"):
        LinearGaussianSSM(nile(), LocalLevel(), noise_var=float("nan"))


@pytest.mark.parametrize(
    "make", [lambda: LocalLevel() + AR(1), lambda: LocalLevel() + HarmonicSeasonal(7.5, 2)]
)
def test_single_precision_and_several_series(make: Any) -> None:
    y = nile()[:60]
    alone = LinearGaussianSSM(y, make())
    several = LinearGaussianSSM([y, y[:40], y[10:]], make())
    single = LinearGaussianSSM(y.float(), make())
    for model in (alone, several, single):
        before = model.loss().item()
        assert model.fit(steps=80).loss < before
    assert single.loss().item() == pytest.approx(alone.loss().item(), abs=0.05)
