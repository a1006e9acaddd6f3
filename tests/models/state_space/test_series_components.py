"""Cycles, harmonics, constant parts, irregular times, names, summaries. Figures of statsmodels 0.15.0."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device import DEVICE
from joint_gaussian import JointGaussian
from pandas_stand_in import DataFrame, Index, Series
from tolerances import OTHER_IMPLEMENTATION, SUMS_OVER_STEPS, assert_close
from torch import Tensor

import lapgrad
from lapgrad.demo.series import load_nile
from lapgrad.models import LinearGaussianSSM
from lapgrad.models._state_space.summary import check_residuals, compute_f_tail
from lapgrad.models.components import (
    AR,
    Component,
    Cycle,
    HarmonicSeasonal,
    LocalLevel,
    LocalLinearTrend,
    Regression,
    Seasonal,
)

DOUBLE = torch.float64

#: Yearly sunspot numbers 1700 to 1759 (NOAA).
SUNSPOTS = [
    5, 11, 16, 23, 36, 58, 29, 20, 10, 8, 3, 0, 0, 2, 11, 27, 47, 63, 60, 39, 28, 26, 22, 11, 21, 40, 78,
    122, 103, 73, 47, 35, 11, 5, 16, 34, 70, 81, 111, 101, 73, 40, 20, 16, 5, 11, 22, 40, 60, 80.9, 83.4,
    47.7, 47.8, 30.7, 12.2, 9.6, 10.2, 32.4, 47.6, 54,
]  # fmt: skip


def sunspots() -> Tensor:
    return torch.tensor(SUNSPOTS, dtype=DOUBLE, device=DEVICE)


def nile() -> Tensor:
    return torch.from_numpy(load_nile()[1]).to(DEVICE)


def cycle(**options: Any) -> Cycle:
    made = Cycle(2 * math.pi / 0.6, 50.0, **options)
    if made.damped:
        made.damping = 0.9
    return made


#: Component, noise, and the log likelihood of UnobservedComponents(..., use_exact_diffuse=True).
AGREEMENTS: dict[str, tuple[Any, float, float]] = {
    "damped cycle": (lambda: LocalLevel(3.0) + cycle(), 2.0, -235.52535160843337),
    "undamped cycle": (lambda: LocalLevel(3.0) + cycle(damped=False), 2.0, -234.13140448118952),
    "harmonics": (
        lambda: LocalLinearTrend(3.0, 0.5) + HarmonicSeasonal(10.7, 3, 4.0),
        2.0,
        -234.99348755466775,
    ),
    "deterministic trend": (lambda: LocalLinearTrend(0, 0), 200.0, -342.14046707707723),
    "random walk without noise": (lambda: LocalLevel(200.0), 0.0, -259.7946243054474),
    "random trend without noise": (lambda: LocalLinearTrend(0, 20.0), 0.0, -607.6150479253462),
}


@pytest.mark.parametrize("name", AGREEMENTS)
def test_agrees_with_statsmodels(name: str) -> None:
    make, noise, value = AGREEMENTS[name]
    model = LinearGaussianSSM(sunspots(), make(), noise_var=noise)
    wanted = torch.tensor(value, dtype=DOUBLE, device=DEVICE)
    assert_close(model.log_likelihood().detach(), wanted, OTHER_IMPLEMENTATION)
    assert_close(model.smooth().log_likelihood, wanted, OTHER_IMPLEMENTATION)


def test_all_harmonics_of_an_even_period_are_a_season() -> None:
    """With variance 0 both say that the pattern repeats; the last wave has one state."""
    y = sunspots()
    harmonics, season = HarmonicSeasonal(6, 3, 0.0), Seasonal(6, 0.0)
    assert harmonics.states == season.states == 5
    a, b = (
        LinearGaussianSSM(y, LocalLevel(3.0) + part, noise_var=2.0).forecast(7)
        for part in (harmonics, season)
    )
    assert_close(a.mean, b.mean, SUMS_OVER_STEPS)
    assert_close(a.variance, b.variance, SUMS_OVER_STEPS)


def test_cycle_starts_at_the_period_of_the_data_and_learns_it() -> None:
    model = LinearGaussianSSM(sunspots(), LocalLevel() + Cycle())
    part = model.component.components[1]
    assert 8 < part.period.item() < 13
    before = model.loss().item()
    assert model.fit(steps=60).loss < before
    assert 8 < part.period.item() < 13
    model.set_values({"cycle.period": 11.0})
    assert part.frequency.item() == pytest.approx(2 * math.pi / 11)


def test_variance_zero_is_exact_and_not_learned() -> None:
    model = LinearGaussianSSM(nile(), LocalLevel(0.0))
    assert model.component.variance.item() == 0.0
    model.fit()
    assert model.component.variance.item() == 0.0
    y = nile()
    assert_close(model.forecast(1).mean[0], y.mean(), SUMS_OVER_STEPS)
    assert model.noise_var.item() == pytest.approx(y.var().item(), rel=1e-3)
    with pytest.raises(lapgrad.OptionError, match="set it to a positive value"):
        model.free("level.variance")
    model.set_values({"level.variance": 10.0})
    assert model.component.raw_variance.requires_grad


def continuous() -> dict[str, Any]:
    X = torch.linspace(0, 2, 12, dtype=DOUBLE, device=DEVICE).sin()[:, None]
    return {
        "level": LocalLevel(0.4),
        "trend": LocalLinearTrend(0.3, 0.2),
        "smooth trend": LocalLinearTrend(0, 0.2),
        "cycle": Cycle(5.0, 0.5),
        "harmonics": HarmonicSeasonal(5.5, 2, 0.3),
        "ar": AR(1, 0.7),
        "regression": Regression(X, 0.2),
    }


@pytest.mark.parametrize("name", continuous())
def test_one_step_is_two_of_half_its_length(name: str) -> None:
    """In continuous time the transition over a gap is the product of those over its parts."""
    part = continuous()[name]
    whole, half = (
        part.block_between(torch.ones(2, dtype=DOUBLE)),
        part.block_between(torch.full((2,), 0.5, dtype=DOUBLE)),
    )
    A, a = whole.A[0].detach(), half.A[0].detach()
    assert_close(A, a @ a)
    assert_close(whole.Q[0].detach(), (a @ half.Q[0] @ a.mT + half.Q[0]).detach())


def test_irregular_times_against_the_joint_distribution() -> None:
    times = np.array([0.0, 0.7, 1.1, 2.9, 3.0, 4.6, 7.2, 7.9])
    y = sunspots()[:8]
    part = LocalLevel(30.0) + Cycle(4.0, 50.0)
    model = LinearGaussianSSM(y, part, noise_var=2.0, times=times, diffuse_variance=1e3)
    block, R = model.matrices()
    operands = (block.A, block.B[0], block.Q, R[0], block.m, block.P)
    assert_close(
        model.log_likelihood(), JointGaussian(y[:, None], *operands).log_likelihood(), SUMS_OVER_STEPS
    )
    assert_close(block.Q[2, 0, 0].detach(), torch.tensor(30.0 * 1.8, dtype=DOUBLE, device=DEVICE))
    with pytest.raises(lapgrad.OptionError, match="regular steps"):
        LinearGaussianSSM(y, LocalLevel() + Seasonal(4), times=times)


def test_left_out_steps_are_missing() -> None:
    y, kept = sunspots()[:12], [0, 1, 2, 5, 6, 7, 8, 11]
    full = y.clone()
    full[[3, 4, 9, 10]] = torch.nan
    short = LinearGaussianSSM(y[kept], LocalLevel(3.0) + Seasonal(3, 0.1), noise_var=2.0, times=kept)
    long = LinearGaussianSSM(full, LocalLevel(3.0) + Seasonal(3, 0.1), noise_var=2.0)
    assert_close(short.loss(), long.loss(), 0)
    for times, message in (
        ([0, 2, 1], "must increase"),
        ([0, 1], "one entry for each of 3"),
        (["a", "b", "c"], "numbers"),
    ):
        error = lapgrad.ShapeError if "entry" in message else lapgrad.OptionError
        with pytest.raises(error, match=message):
            LinearGaussianSSM(y[:3], LocalLevel(), times=times)


def test_names() -> None:
    model = LinearGaussianSSM(sunspots(), LocalLinearTrend() + Seasonal(4) + Seasonal(5) + AR(2))
    names = ["trend.level_variance", "trend.slope_variance", "seasonal.variance", "seasonal_2.variance"]
    assert list(model.hyperparameters()) == [*names, "ar.partial", "ar.variance", "noise_var"]
    model.set_values({"seasonal_2.variance": 0.3, "ar.partial": [0.5, -0.2]}, noise_var=4.0)
    assert model.component.components[2].variance.item() == pytest.approx(0.3)
    assert model.noise_var.item() == pytest.approx(4.0)
    model.noise_var = 5.0
    assert model.hyperparameters()["noise_var"].item() == pytest.approx(5.0)
    model.fix("noise_var", "ar.partial")
    assert not model.noise.raw_deviations.requires_grad
    model.free()
    assert model.noise.raw_deviations.requires_grad
    for call in (lambda: model.fix("seasonal.var"), lambda: model.set_values(noise=1.0)):
        with pytest.raises(lapgrad.OptionError, match="noise_var"):
            call()
    assert "Seasonal(period=5, variance=0.3)" in repr(model)
    assert "noise_var=5; 60 steps" in repr(model)
    vectors = LinearGaussianSSM(torch.randn(20, 2, dtype=DOUBLE, device=DEVICE), 2)
    R = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE, device=DEVICE)
    vectors.set_values(noise_var=R)
    assert_close(vectors.noise_var.detach(), R)
    with pytest.raises(lapgrad.OptionError, match="without noise"):
        LinearGaussianSSM(sunspots(), LocalLevel(), noise_var=0.0).set_values(noise_var=1.0)


def test_summary_of_the_nile() -> None:
    """Standard errors of the exact Hessian; statsmodels has 3147 and 1296 near these parameters."""
    model = LinearGaussianSSM(nile(), LocalLevel(1469.1), noise_var=15099.0)
    summary = model.summary()
    assert summary.log_likelihood == pytest.approx(-633.4645636488787)
    assert summary.aic == pytest.approx(1272.9291272977573)
    assert summary.bic == pytest.approx(1280.7446378557215)
    estimates = {estimate.name: estimate for estimate in summary.estimates}
    assert estimates["noise_var"].error == pytest.approx(3146, rel=0.01)
    assert estimates["level.variance"].error == pytest.approx(1280, rel=0.01)
    (tests,) = summary.residuals
    assert tests.ljung_box == pytest.approx(13.195318038612937, rel=0.01)
    assert tests.jarque_bera == pytest.approx(0.04686965, rel=0.02)
    assert (tests.skewness, tests.kurtosis) == pytest.approx((-0.03055193, 3.08734219), abs=0.002)
    assert tests.heteroskedasticity == pytest.approx(0.61295871, rel=1e-4)
    assert tests.heteroskedasticity_p == pytest.approx(0.16500525, rel=1e-4)
    assert "AIC 1272.929" in str(summary)
    z = torch.as_tensor(model.residuals())
    assert z[0].isnan()
    wanted = torch.tensor([0.22477906, -1.13748616, 0.91774955], dtype=DOUBLE, device=DEVICE)
    assert float((z[1:4] - wanted).abs().max()) < 1e-7


def test_hessian_by_differences_is_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LinearGaussianSSM(nile()[:40], LocalLevel(1469.1) + AR(1, 500.0), noise_var=15099.0)
    exact = model.compute_hessian()
    monkeypatch.setattr("lapgrad.models._state_space.named_model._LONGEST_EXACT", 10)
    assert float((model.compute_hessian() - exact).abs().max() / exact.abs().max()) < 1e-8


def test_summary_says_what_has_no_error() -> None:
    model = LinearGaussianSSM(nile(), LocalLinearTrend(1469.1, 1e-9), noise_var=15099.0)
    model.fix("noise_var")
    notes = {estimate.name: estimate.note for estimate in model.summary().estimates}
    assert notes == {"trend.level_variance": "", "trend.slope_variance": "at its bound", "noise_var": "fixed"}
    assert "at its bound" in str(model.summary())


def test_residual_tests() -> None:
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(600, generator=generator, dtype=DOUBLE)
    good = check_residuals(white)
    assert min(good.ljung_box_p, good.jarque_bera_p, good.heteroskedasticity_p) > 0.01
    assert check_residuals(white.cumsum(0)).ljung_box_p < 1e-6
    assert check_residuals(white**3).jarque_bera_p < 1e-6
    assert check_residuals(white * torch.linspace(0.5, 2, 600, dtype=DOUBLE)).heteroskedasticity_p < 1e-6
    assert math.isnan(check_residuals(white[:3]).ljung_box)
    # P(F > 1) is 1/2 for equal degrees of freedom; P(F(2, n) > x) = (1 + 2 x / n)^(-n / 2).
    assert compute_f_tail(1.0, 7, 7) == pytest.approx(0.5)
    assert compute_f_tail(3.0, 2, 10) == pytest.approx((1 + 6 / 10) ** -5)
    assert compute_f_tail(0.2, 2, 10) == pytest.approx((1 + 0.4 / 10) ** -5)


def test_regressors_of_the_forecast() -> None:
    X = torch.linspace(0, 3, 63, dtype=DOUBLE, device=DEVICE).sin()[:, None]
    y = sunspots()
    known = LinearGaussianSSM(y, LocalLevel(30.0) + Regression(X), noise_var=10.0)
    passed = LinearGaussianSSM(y, LocalLevel(30.0) + Regression(X[:60]), noise_var=10.0)
    expected = known.forecast(3)
    for later in (X[60:], X[60:].cpu().numpy(), {"regression": X[60:]}):
        assert_close(passed.forecast(3, X=later).mean, expected.mean, 0)
    assert len(passed.component.components[1].X) == 60
    for call, error, message in (
        (lambda: passed.forecast(3), lapgrad.ShapeError, "63 are needed"),
        (lambda: passed.forecast(3, X=X[61:]), lapgrad.ShapeError, "must have 3 rows"),
        (lambda: passed.forecast(3, X={"other": X[60:]}), lapgrad.OptionError, "regression"),
        (lambda: LinearGaussianSSM(y, LocalLevel()).forecast(3, X=X[60:]), lapgrad.OptionError, "has 0"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_columns_and_labels_of_regressors(tmp_path: Path) -> None:
    months = np.datetime64("2020-01") + np.arange(63)
    X = np.random.default_rng(0).normal(size=(63, 2))

    def frame(first: int, last: int, columns: tuple[str, ...] = ("price", "rain"), shift: int = 0) -> Any:
        index = Index((months + shift)[first:last].astype("datetime64[D]"))
        return DataFrame(X[first:last, [columns.index(name) for name in columns]], index, columns)

    y = Series(sunspots().numpy(force=True), frame(0, 60).index)
    model = LinearGaussianSSM(y, LocalLevel(30.0) + Regression(frame(0, 60)), noise_var=10.0)
    expected = model.forecast(3, X=X[60:]).mean
    np.testing.assert_array_equal(model.forecast(3, X=frame(60, 63)[["rain", "price"]]).mean, expected)
    later = Index(np.arange(60, 63))  # of rows: no dates
    np.testing.assert_array_equal(model.forecast(3, X=DataFrame(X[60:], later)).mean, expected)
    drawn = [model.sample(3, 2, X=rows, generator=0) for rows in (frame(60, 63), X[60:])]
    np.testing.assert_array_equal(*drawn)
    model.save(tmp_path / "model")
    again = LinearGaussianSSM.load(tmp_path / "model")
    np.testing.assert_array_equal(again.forecast(3, X=frame(60, 63)[["rain", "price"]]).mean, expected)
    for call, message in (
        (lambda: model.forecast(3, X=DataFrame(X[60:], later, ["price", "snow"])), "must have the columns"),
        (
            lambda: LinearGaussianSSM(y, LocalLevel() + Regression(frame(0, 60, shift=1))),
            "at row 0 2020-01-01 and 2020-02-01",
        ),
    ):
        with pytest.raises(lapgrad.OptionError, match=message):
            call()


def test_regressors_have_the_dates_of_the_forecast() -> None:
    pandas = pytest.importorskip("pandas")
    months = pandas.date_range("2020-01", periods=63, freq="MS")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(63, 2)), months)
    y = pandas.Series(sunspots().numpy(force=True), months[:60])
    model = LinearGaussianSSM(y, LocalLevel(30.0) + Regression(X[:60]), noise_var=10.0)
    assert list(model.forecast(3, X=X[60:]).mean.index) == list(months[60:])
    with pytest.raises(lapgrad.OptionError, match="at row 0 2025-01-01 and 2024-12-01"):
        model.forecast(3, X=X[59:62])
    rows = X[60:].set_axis(range(60, 63))  # of rows: no dates
    in_zone = LinearGaussianSSM(
        y.tz_localize("Europe/Vienna"), LocalLevel(30.0) + Regression(X[:60].to_numpy())
    )
    for one in (model, in_zone):
        assert len(one.forecast(3, X=rows).mean) == 3


def test_steps_that_are_left_out_need_regressors() -> None:
    """Their values do not count, because there is no observation."""
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"a": range(60)}, pandas.date_range("2020-01", periods=60, freq="MS"), dtype=float)
    y = pandas.Series(sunspots().numpy(force=True), X.index)
    known = X.index.delete([5, 17])
    for rows in (X.loc[known], X.loc[X.index.delete([5, 17])], X.loc[known[:40]]):
        with pytest.raises(lapgrad.OptionError, match="X of Regression has no row for 2020-06-01"):
            LinearGaussianSSM(y[known[:50]], LocalLevel() + Regression(rows))
    losses = [
        LinearGaussianSSM(y[known], LocalLevel(30.0) + Regression(rows), noise_var=10.0).loss().item()
        for rows in (X, X.loc[known].reindex(X.index, fill_value=0.0))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("index", ["PeriodIndex", "DatetimeIndex", "Index"])
def test_a_series_without_steps_is_refused(index: str) -> None:
    pandas = pytest.importorskip("pandas")
    empty = pandas.PeriodIndex([], freq="M") if index == "PeriodIndex" else getattr(pandas, index)([])
    with pytest.raises(lapgrad.NonFiniteError, match="y has no observation"):
        LinearGaussianSSM(pandas.Series([], empty, dtype=float), LocalLevel())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HarmonicSeasonal(2), "more than 2"),
        (lambda: HarmonicSeasonal(7.5, 4), "harmonics"),
        (lambda: Seasonal(52.18), "HarmonicSeasonal takes others"),
        (lambda: Cycle(period_bounds=(5, 3)), "period_bounds"),
        (lambda: Cycle(100.0, period_bounds=(3, 30)), "the period between 3 and 30"),
        (lambda: LocalLevel(-1.0), "non-negative"),
    ],
)
def test_bad_options(make: Any, message: str) -> None:
    with pytest.raises(lapgrad.OptionError, match=message):
        make()


@pytest.mark.parametrize(
    "component", [Cycle(9.0, 2.0), Cycle(damped=False), HarmonicSeasonal(7.5, 2, 0.0)], ids=str
)
def test_save_and_load(component: Component, tmp_path: Path) -> None:
    times = np.array([0, 0.5, 2, 3, 4.2, 5, 6, 7, 8, 9.1])
    model = LinearGaussianSSM(sunspots()[:10], LocalLevel(2.0) + component, noise_var=1.0, times=times)
    model.save(tmp_path / "model")
    again = LinearGaussianSSM.load(tmp_path / "model")
    assert_close(again.loss().detach(), model.loss().detach(), 0)
    assert_close(again.forecast(3).mean, model.forecast(3).mean, 0)
    assert repr(again) == repr(model)


def test_diagnostics_are_drawn(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    model = LinearGaussianSSM(sunspots(), LocalLevel(30.0), noise_var=10.0)
    axes = model.plot_diagnostics()
    axes[0, 0].figure.savefig(tmp_path / "figure.png")
    assert all(one.get_xlabel() and one.get_ylabel() for one in axes.flat)
    axes = model.plot(3)
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(set(texts)) == len(texts) == 5
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    with pytest.raises(lapgrad.ShapeError, match="63 entries"):
        model.plot(3, times=range(10))
    pyplot.close("all")
