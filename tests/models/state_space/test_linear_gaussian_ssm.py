"""LinearGaussianSSM and its components: against joint normal distributions, limits, and statsmodels."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE
from joint_gaussian import JointGaussian
from tolerances import (
    ALL_TIMES_AT_ONCE,
    DIFFUSE_LIMIT,
    OTHER_IMPLEMENTATION,
    SUMS_OVER_STEPS,
    assert_close,
    of_joint_density,
)
from torch import Tensor, nn

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.models import LinearGaussianSSM, Model
from lapgrad.models._state_space.covariance import Covariance
from lapgrad.models.components import (
    AR,
    Block,
    Component,
    Emitted,
    LinearDynamics,
    LocalLevel,
    LocalLinearTrend,
    Regression,
    Seasonal,
)

DOUBLE = torch.float64


def series(length: int = 24, seed: int = 0) -> Tensor:
    """Return a trend, a season of 4 and noise; two observations are missing."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(length, dtype=DOUBLE, device=DEVICE)
    y = (
        0.1 * t
        + torch.sin(math.pi * t / 2)
        + 0.3 * torch.randn(length, generator=generator, dtype=DOUBLE).to(DEVICE)
    )
    y[5], y[11] = torch.nan, torch.nan
    return y


def structural() -> Component:
    return LocalLinearTrend(0.05, 0.002) + Seasonal(4, 0.01)


COMPONENTS: dict[str, Any] = {
    "level": lambda: LocalLevel(0.1),
    "trend": lambda: LocalLinearTrend(0.05, 0.002),
    "smooth trend": lambda: LocalLinearTrend(0, 0.002),
    "damped trend": lambda: LocalLinearTrend(0.05, 0.002, damped=True),
    "season": lambda: Seasonal(4, 0.01),
    "autoregression": lambda: AR(3, 0.2),
    "regression": lambda: Regression(torch.linspace(0, 2, 30, dtype=DOUBLE, device=DEVICE).view(30, 1).sin()),
    "wandering regression": lambda: Regression(
        torch.linspace(1, 2, 30, dtype=DOUBLE, device=DEVICE).view(30, 1), 0.1
    ),
    "dynamics": lambda: LinearDynamics(2, generator=1),
    "trend and season": structural,
    "level, season, autoregression": lambda: LocalLevel(0.1) + Seasonal(3, 0.01) + AR(1, 0.2),
}


@pytest.fixture(params=COMPONENTS)
def component(request: pytest.FixtureRequest) -> Component:
    return COMPONENTS[request.param]()


def joint(model: LinearGaussianSSM, y: Tensor, times: int | None = None) -> JointGaussian:
    """Return the same model as one normal vector, of a series (T,)."""
    times = len(y) if times is None else times
    block, R = model.matrices(times)
    y = torch.nn.functional.pad(y[:, None], (0, 0, 0, times - len(y)), value=torch.nan)
    operands = (block.A, block.B, block.Q, R, block.m, block.P)
    return JointGaussian(y, *[operand.detach() for operand in operands])


def test_against_the_joint_distribution(component: Component) -> None:
    """With a proper prior: likelihood, filter, smoother and forecasts."""
    y = series()
    model = LinearGaussianSSM(y, component, noise_var=0.1, diffuse_variance=2.0)
    oracle = joint(model, y)
    units = of_joint_density(oracle.condition(), y.dtype)
    assert_close(model.log_likelihood().detach(), oracle.log_likelihood(), units)
    mean, covariance = oracle.states(len(y))
    found = model.smooth()
    assert_close(found.mean, mean, ALL_TIMES_AT_ONCE)
    assert_close(found.covariance[7], oracle.block(covariance, 7), ALL_TIMES_AT_ONCE)
    assert_close(found.cross_covariance[3], oracle.block(covariance, 4, 3), ALL_TIMES_AT_ONCE)
    filtered = model.filter()
    assert_close(filtered.mean[6], oracle.states(7)[0][6], ALL_TIMES_AT_ONCE)
    assert_close(filtered.predicted_mean[6], oracle.states(6)[0][6], ALL_TIMES_AT_ONCE)
    assert_close(filtered.log_likelihood.sum(), oracle.log_likelihood(), ALL_TIMES_AT_ONCE)
    ahead = joint(model, y, len(y) + 3)
    mean, covariance = ahead.states(len(y))
    expected = ahead.H @ mean.reshape(-1)
    spread = ahead.H @ covariance @ ahead.H.mT
    forecast = model.forecast(3, noise=True)
    assert_close(forecast.mean, expected[-3:], ALL_TIMES_AT_ONCE)
    assert_close(forecast.variance, spread.diagonal()[-3:] + 0.1, ALL_TIMES_AT_ONCE)
    assert_close(model.forecast(3).variance, spread.diagonal()[-3:], ALL_TIMES_AT_ONCE)


def test_diffuse_states_are_the_limit_of_wide_priors(component: Component) -> None:
    """log p + d/2 log(variance) approaches the diffuse likelihood; moments approach those without a prior."""
    y = series()
    diffuse = sum(component.diffuse)
    exact = LinearGaussianSSM(y, component, noise_var=0.1)
    wide = LinearGaussianSSM(y, component, noise_var=0.1, diffuse_variance=1e5)
    shift = 0.5 * diffuse * math.log(1e5)
    assert_close(exact.log_likelihood().detach(), (wide.log_likelihood() + shift).detach(), DIFFUSE_LIMIT)
    assert_close(exact.smooth().log_likelihood, exact.log_likelihood().detach(), SUMS_OVER_STEPS)
    oracle = joint(wide, y)
    mean, covariance = oracle.states(len(y))
    assert_close(exact.smooth().mean, mean, DIFFUSE_LIMIT)
    assert_close(exact.smooth().covariance[0], oracle.block(covariance, 0), DIFFUSE_LIMIT)
    assert_close(exact.forecast(2).mean, wide.forecast(2).mean, DIFFUSE_LIMIT)
    filtered = exact.filter()
    identified = exact._start - 1 if diffuse else 0
    assert filtered.mean[:identified].isnan().all()
    assert not filtered.mean[identified:].isnan().any()
    assert_close(filtered.mean[-1], oracle.states(len(y))[0][-1], DIFFUSE_LIMIT)


def test_gradient_of_the_loss(component: Component) -> None:
    model = LinearGaussianSSM(series(12), component, noise_var=0.1)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    def loss(*values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), ())

    assert torch.autograd.gradcheck(loss, tuple(parameters.values()), fast_mode=True)


def test_regression_without_noise_of_states_is_least_squares() -> None:
    X = torch.stack(
        (torch.ones(20, dtype=DOUBLE, device=DEVICE), torch.arange(20, dtype=DOUBLE, device=DEVICE)), 1
    )
    y = series(20)
    seen = ~y.isnan()
    model = LinearGaussianSSM(y, Regression(X), noise_var=0.3)
    coefficients = torch.linalg.lstsq(X[seen], y[seen][:, None]).solution[:, 0]
    assert_close(model.smooth().mean[-1], coefficients)
    assert_close(model.smooth().covariance[0], 0.3 * torch_lu.inv(X[seen].mT @ X[seen]))
    with pytest.raises(lapgrad.ShapeError, match="X has 20 rows, 22 are needed"):
        model.forecast(2)


def test_dynamics_are_drawn_wherever_the_generator_is() -> None:
    drawn = LinearDynamics(2, 3, generator=torch.Generator(DEVICE).manual_seed(1)).B
    assert drawn.shape == (3, 2)
    assert drawn.device.type == "cpu"
    assert torch.equal(drawn, LinearDynamics(2, 3, generator=torch.Generator(DEVICE).manual_seed(1)).B)


def test_autoregression_is_stationary() -> None:
    part = AR(3, 2.0)
    part.partial = [0.9, -0.5, 0.3]
    block = part.block(1)
    assert_close(block.A[0] @ block.P @ block.A[0].mT + block.Q[0], block.P)
    assert torch.linalg.eigvals(block.A[0]).abs().max() < 1
    assert_close(block.A[0, 0], part.coefficients)
    assert AR(1, 1.0).coefficients.item() == 0.5


def test_sums_are_flat_and_in_order() -> None:
    model = LocalLevel(0.1) + Seasonal(4, 0.2) + AR(2, 0.3)
    assert [type(part).__name__ for part in model.components] == ["LocalLevel", "Seasonal", "AR"]
    assert model.states == 6
    assert model.diffuse == (True,) * 4 + (False,) * 2
    block = model.block(5)
    assert block.A.shape == (1, 6, 6)
    assert torch.count_nonzero(block.A[0, :1, 1:]) == 0
    assert block.B.tolist() == [[[1.0, 1.0, 0.0, 0.0, 1.0, 0.0]]]
    nested = LocalLevel(0.1) + (Seasonal(4, 0.2) + AR(2, 0.3))
    assert torch.equal(nested.block(5).A, block.A)


def test_decomposition_adds_up() -> None:
    y = series()
    model = LinearGaussianSSM(y, structural(), noise_var=0.1)
    parts = model.decompose()
    assert len(parts) == 2
    block = model.matrices().block
    signal = (block.B @ model.smooth().mean[..., None])[..., 0, 0].detach()
    assert_close(parts[0].mean + parts[1].mean, signal)
    assert parts[0].variance.shape == y.shape


def test_several_series_of_different_length() -> None:
    """One model of all: value, smoothed states and forecasts of each series are those it has alone."""
    all_series = [series(24, 1), series(13, 2), series(18, 3)]
    together = LinearGaussianSSM(all_series, structural(), noise_var=0.1)
    assert together.lengths.tolist() == [24, 13, 18]
    values, smoothed, ahead = together.log_likelihood(), together.smooth(), together.forecast(4)
    assert values.shape == (3,)
    assert ahead.mean.shape == (3, 4)
    for i, y in enumerate(all_series):
        alone = LinearGaussianSSM(y, structural(), noise_var=0.1)
        assert_close(values[i], alone.log_likelihood(), SUMS_OVER_STEPS)
        assert_close(smoothed.mean[i, : len(y)], alone.smooth().mean, SUMS_OVER_STEPS)
        assert_close(ahead.mean[i], alone.forecast(4).mean, SUMS_OVER_STEPS)
        assert_close(ahead.variance[i], alone.forecast(4).variance, SUMS_OVER_STEPS)
    assert_close(together.loss(), -values.sum())
    assert together.sample(4, 5, generator=0).shape == (3, 5, 4)


def test_series_of_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 2, generator=generator, dtype=DOUBLE).to(DEVICE).cumsum(0)
    y[3, 1] = torch.nan
    model = LinearGaussianSSM(y, 3)
    before = model.loss().item()
    result = model.fit(steps=60)
    assert result.loss < before
    mean, covariance = model.forecast(3)
    assert mean.shape == (3, 2)
    assert covariance.shape == (3, 2, 2)
    assert model.noise_var.shape == (2, 2)
    assert model.sample(3, 4, generator=0).shape == (4, 3, 2)
    assert LinearGaussianSSM(y, 1, noise="diagonal").noise_var[0, 1] == 0
    batch = LinearGaussianSSM(torch.stack((y, y + 1)), 2)
    assert batch.smooth().mean.shape == (2, 40, 2)


@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_the_moments_of_the_forecast(noise: bool) -> None:
    model = LinearGaussianSSM(series(), structural(), noise_var=0.1)
    drawn = model.sample(3, 20_000, noise=noise, generator=3)
    mean, variance = model.forecast(3, noise=noise)
    error = variance.sqrt() / math.sqrt(20_000)
    assert ((drawn.mean(0) - mean).abs() < 5 * error).all()
    assert ((drawn.var(0) / variance - 1).abs() < 0.06).all()
    assert torch.equal(model.sample(3, 2, generator=3), model.sample(3, 2, generator=3))


def test_learning_finds_the_variances() -> None:
    generator = torch.Generator().manual_seed(1)
    level = torch.randn(2000, generator=generator, dtype=DOUBLE).to(DEVICE).mul(0.5).cumsum(0)
    y = level + 2.0 * torch.randn(2000, generator=generator, dtype=DOUBLE).to(DEVICE)
    model = LinearGaussianSSM(y, LocalLevel())
    result = model.fit()
    assert result.converged
    assert model.noise_var.item() == pytest.approx(4.0, rel=0.15)
    assert model.component.variance.item() == pytest.approx(0.25, rel=0.4)


class Volatility(nn.Module):
    """A random walk whose noise, and an offset, come out of a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Block:
        found = self.head(self.lstm(inputs[None])[0][0])
        variance, offset = found[:, :1].exp(), found[:, 1:]
        one = inputs.new_ones(1, 1, 1)
        prior = inputs.new_zeros(1), inputs.new_ones(1, 1)
        return Block(one, one, 0.1 * one, *prior, observation_offset=offset, R=variance[..., None])


def test_network_that_emits_matrices(tmp_path: Path) -> None:
    torch.manual_seed(0)
    y, inputs = series(20), torch.linspace(0, 1, 24, dtype=DOUBLE, device=DEVICE)[:, None]
    network = Volatility().to(DEVICE, DOUBLE)
    model = LinearGaussianSSM(y, Emitted(network, inputs, states=1), noise_var=0.0)
    block, R = model.matrices()
    operands = (block.A[0], block.B[0], block.Q[0], R, block.m, block.P)
    oracle = JointGaussian(y[:, None], *operands, observation_offset=block.observation_offset)
    assert_close(model.log_likelihood(), oracle.log_likelihood())
    before, weights = model.loss().item(), network.head.weight.detach().clone()
    assert model.fit("adam", steps=30, lr=0.01).loss < before
    assert bool((network.head.weight != weights).all()), "each of them has had gradients"
    forecast = model.forecast(4)
    assert forecast.mean.shape == (4,)
    assert model.sample(4, 2, generator=0).shape == (2, 4)
    with pytest.raises(lapgrad.ShapeError, match="inputs has 24 rows, 25 are needed"):
        model.forecast(5)
    model.save(tmp_path / "hybrid")
    again = Model.load(tmp_path / "hybrid", modules={"module": Volatility().to(DEVICE, DOUBLE)})
    assert isinstance(again, LinearGaussianSSM)
    assert_close(again.forecast(4).mean, forecast.mean, 0)
    with pytest.raises(lapgrad.OptionError, match='the network "module" is missing'):
        Model.load(tmp_path / "hybrid")


def test_save_and_load(component: Component, tmp_path: Path) -> None:
    model = LinearGaussianSSM([series(), series(15, 1)], component, noise_var=0.2)
    model.save(tmp_path / "model")
    again = LinearGaussianSSM.load(tmp_path / "model")
    assert_close(again.loss().detach(), model.loss().detach(), 0)
    assert_close(again.forecast(3).variance, model.forecast(3).variance, 0)
    single = LinearGaussianSSM(series(), LocalLevel(), diffuse_variance=100.0)
    single.save(tmp_path / "model")
    again = LinearGaussianSSM.load(tmp_path / "model")
    assert_close(again.loss().detach(), single.loss().detach(), 0)
    assert again.forecast(2).mean.shape == (2,)


def test_single_precision() -> None:
    model = LinearGaussianSSM(series().float(), structural(), noise_var=0.1)
    double = LinearGaussianSSM(series(), structural(), noise_var=0.1)
    assert model.loss().dtype == torch.float32
    assert_close(model.loss().detach(), double.loss().detach().float(), SUMS_OVER_STEPS)
    assert_close(model.forecast(2).mean, double.forecast(2).mean.float(), SUMS_OVER_STEPS)


def test_covariance_is_what_it_was_set_to() -> None:
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE, device=DEVICE)
    assert_close(Covariance(matrix).matrix().detach(), matrix)
    assert_close(
        Covariance(torch.tensor([2.0, 3.0], device=DEVICE)).matrix().detach(),
        torch.diag(matrix.new_tensor([2.0, 3.0])),
    )
    with pytest.raises(lapgrad.NotPositiveDefiniteError):
        Covariance(-matrix)
    with pytest.raises(lapgrad.ShapeError):
        Covariance(torch.ones(2, 3, device=DEVICE))


def test_plot_draws_the_forecast_of_one_series() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    for model in (
        LinearGaussianSSM(series(), structural()),
        LinearGaussianSSM([series(), series(13)], LocalLevel()),
    ):
        axes = model.plot(3)
        axes.figure.canvas.draw()
        assert len(axes.lines) == 2
        _, forecast = axes.lines
        expected = model.forecast(3).mean if model.single else model.forecast(3).mean[0]
        assert_close(torch.as_tensor(forecast.get_ydata()), expected.cpu())
        pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("y", "component", "options", "error", "message"),
    [
        (
            torch.ones(5, dtype=torch.int64, device=DEVICE),
            LocalLevel,
            {},
            lapgrad.DTypeError,
            "y has dtype torch.int64",
        ),
        (torch.ones(2, 2, 2, 2, device=DEVICE), LocalLevel, {}, lapgrad.ShapeError, "y must have shape"),
        ([], LocalLevel, {}, lapgrad.ShapeError, "no series"),
        (
            [torch.ones(3, device=DEVICE), torch.ones(3, 2, device=DEVICE)],
            LocalLevel,
            {},
            lapgrad.ShapeError,
            "all series must have shape",
        ),
        (
            torch.full((4,), torch.nan, device=DEVICE),
            LocalLevel,
            {},
            lapgrad.NonFiniteError,
            "no observation",
        ),
        (
            torch.tensor([1.0, torch.inf], device=DEVICE),
            LocalLevel,
            {},
            lapgrad.NonFiniteError,
            "infinite at step 1",
        ),
        (torch.ones(5, 2, device=DEVICE), LocalLevel, {}, lapgrad.ShapeError, "y has 2 values at each time"),
        (
            torch.ones(5, device=DEVICE),
            lambda: "level",
            {},
            lapgrad.OptionError,
            "component must be a Component",
        ),
        (torch.ones(5, device=DEVICE), LocalLevel, {"noise": "none"}, lapgrad.OptionError, "noise"),
        (
            torch.ones(5, device=DEVICE),
            LocalLevel,
            {"noise_var": torch.ones(2, device=DEVICE)},
            lapgrad.ShapeError,
            "noise_var must be",
        ),
        (
            torch.ones(5, device=DEVICE),
            LocalLevel,
            {"diffuse_variance": -1.0},
            lapgrad.OptionError,
            "diffuse_variance",
        ),
        (torch.ones(3, device=DEVICE), lambda: Seasonal(12), {}, lapgrad.DomainError, "they are too few"),
        (torch.ones(9, device=DEVICE), lambda: LocalLevel() + LocalLevel(), {}, lapgrad.DomainError, "alike"),
        (
            torch.ones(5, device=DEVICE),
            lambda: AR(1.5),
            {},
            lapgrad.OptionError,
            "order must be a positive int",
        ),  # type: ignore[arg-type]
        (torch.ones(5, device=DEVICE), lambda: LocalLevel, {}, lapgrad.OptionError, r"write LocalLevel\("),
        (torch.ones(5, device=DEVICE), lambda: Seasonal(1), {}, lapgrad.OptionError, "period"),
        (torch.ones(5, device=DEVICE), lambda: AR(0), {}, lapgrad.OptionError, "order"),
        (
            torch.ones(5, device=DEVICE),
            lambda: 0,
            {},
            lapgrad.OptionError,
            "states and observations must be positive",
        ),
    ],
)
def test_bad_input(y: Any, component: Any, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        LinearGaussianSSM(y, component(), **options)


def test_bad_steps() -> None:
    model = LinearGaussianSSM(torch.arange(5.0, device=DEVICE), LocalLevel())
    assert model.forecast(0).mean.shape == (0,)
    assert model.sample(0, 2).shape == (2, 0)
    for steps in (-1, 1.5, True):
        with pytest.raises(lapgrad.OptionError, match="steps must be"):
            model.forecast(steps)


def test_one_observation_and_constant_series() -> None:
    one = LinearGaussianSSM(torch.tensor([3.0], dtype=DOUBLE, device=DEVICE), LocalLevel(0.5), noise_var=1.0)
    assert_close(one.forecast(1).mean, torch.tensor([3.0], dtype=DOUBLE, device=DEVICE))
    assert_close(one.forecast(1, noise=True).variance, torch.tensor([2.5], dtype=DOUBLE, device=DEVICE))
    constant = LinearGaussianSSM(torch.full((20,), 7.0, dtype=DOUBLE, device=DEVICE), LocalLevel())
    assert_close(constant.forecast(2).mean, torch.tensor([7.0, 7.0], dtype=DOUBLE, device=DEVICE))


def unobserved_components(y: Tensor, *arguments: Any, **options: Any) -> Any:
    api = pytest.importorskip("statsmodels.api")
    return api.tsa.UnobservedComponents(y.cpu().numpy(), *arguments, **options, use_exact_diffuse=True)


STATSMODELS: dict[str, tuple[Any, Any, dict[str, Any], list[float]]] = {
    "level": (lambda: LocalLevel(0.2), "llevel", {}, [0.1, 0.2]),
    "trend": (lambda: LocalLinearTrend(0.05, 0.002), "lltrend", {}, [0.1, 0.05, 0.002]),
    "trend and season": (structural, "lltrend", {"seasonal": 4}, [0.1, 0.05, 0.002, 0.01]),
}


@pytest.mark.parametrize("name", STATSMODELS)
def test_against_statsmodels(name: str) -> None:
    make, kind, options, parameters = STATSMODELS[name]
    y = series(40)
    model = LinearGaussianSSM(y, make(), noise_var=0.1)
    theirs = unobserved_components(y, kind, **options)
    value = torch.tensor(theirs.loglike(parameters), dtype=DOUBLE, device=DEVICE)
    assert_close(model.log_likelihood().detach(), value, OTHER_IMPLEMENTATION)
    found = theirs.smooth(parameters)
    smoothed = torch.from_numpy(found.smoothed_state.T.copy()).to(DEVICE)
    assert_close(model.smooth().mean, smoothed, OTHER_IMPLEMENTATION)
    forecast = found.get_forecast(5)
    assert_close(
        model.forecast(5).mean,
        torch.from_numpy(forecast.predicted_mean).to(DEVICE),
        OTHER_IMPLEMENTATION,
    )
    assert_close(
        model.forecast(5, noise=True).variance,
        torch.from_numpy(forecast.var_pred_mean).to(DEVICE),
        OTHER_IMPLEMENTATION,
    )


def test_nile() -> None:
    """The flow of the Nile, as in Durbin and Koopman: variances 15099 and 1469.1."""
    file = Path(os.environ.get("LAPGRAD_DATA", "")) / "nile.csv"
    if not file.is_file():
        pytest.skip("LAPGRAD_DATA names no folder with nile.csv")
    with file.open() as lines:
        y = torch.tensor([float(row["volume"]) for row in csv.DictReader(lines)], dtype=DOUBLE, device=DEVICE)
    model = LinearGaussianSSM(y, LocalLevel())
    result = model.fit(tolerance=1e-10)
    assert result.loss == pytest.approx(633.4646, abs=1e-3)
    assert model.noise_var.item() == pytest.approx(15099, rel=1e-3)
    assert model.component.variance.item() == pytest.approx(1469.1, rel=1e-3)
