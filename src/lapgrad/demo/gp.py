"""Gaussian process regression: y ~ N(0, A), A = K + noise·I, hyper-parameters learned by likelihood.

The criterion is −log N(y | 0, A). With A = L Lᵀ and z = L⁻¹ y it is

    φ = ½ (‖z‖² + n log 2π) + log |L|

K is a sum of three kernels of the time difference d (in years):

    trend      a_t exp(−d² / 2 l_t²)
    season     a_s exp(−d² / 2 l_s² − 2 sin²(πd) / w²)     period one year; its shape drifts over l_s years
    weather    a_w (1 + d² / 2 b l_w²)^−b                  irregularities of several time scales
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import lapgrad as lg
from lapgrad.demo.carbon import Series


@dataclass(frozen=True)
class Algebra:
    """The routines a criterion is written in, so that the same model runs on lapgrad and on torch.linalg."""

    name: str
    potrf: Callable[[Tensor], Tensor]
    trsm: Callable[[Tensor, Tensor], Tensor]
    syrk: Callable[[Tensor], Tensor]
    sumlogdiag: Callable[[Tensor], Tensor]


LAPGRAD = Algebra("lapgrad", lg.potrf, lg.trsm, lg.syrk, lg.sumlogdiag)
TORCH = Algebra(
    "torch.linalg",
    torch.linalg.cholesky,
    lambda L, A: torch.linalg.solve_triangular(L, A, upper=False),
    lambda A: A @ A.mT,
    lambda L: L.diagonal().log().sum(),
)


def criterion(A: Tensor, y: Tensor, algebra: Algebra = LAPGRAD) -> Tensor:
    """−log N(y | 0, A) for A of shape (n, n) and y of shape (n,)."""
    L = algebra.potrf(A)
    z = algebra.trsm(L, y[:, None])
    return 0.5 * (z.square().sum() + len(y) * math.log(2 * math.pi)) + algebra.sumlogdiag(L)


@dataclass(frozen=True)
class Parameter:
    """A positive hyper-parameter: where learning starts, and how it is shown."""

    start: float
    text: str
    unit: str


# Variances are relative to the variance of the training data.
PARAMETERS = {
    "trend_variance": Parameter(10.0, "trend: amplitude", "ppm"),
    "trend_length": Parameter(50.0, "trend: length", "years"),
    "season_variance": Parameter(0.1, "season: amplitude", "ppm"),
    "season_length": Parameter(60.0, "season: drift length", "years"),
    "season_width": Parameter(1.0, "season: smoothness", ""),
    "weather_variance": Parameter(0.01, "weather: amplitude", "ppm"),
    "weather_length": Parameter(1.0, "weather: length", "years"),
    "weather_mixture": Parameter(1.0, "weather: shape", ""),
    "noise_variance": Parameter(1e-3, "noise: amplitude", "ppm"),
}

_JITTER = {torch.float64: 1e-8, torch.float32: 1e-4}
"""Added to the noise: keeps A positive definite in the arithmetic of the dtype."""


class CarbonModel:
    """The process for one training series. Learning works on the logarithms of the parameters."""

    def __init__(self, train: Series, dtype: torch.dtype = torch.float64) -> None:
        self.train, self.dtype = train, dtype
        self.mean, self.scale = train.ppm.mean(), train.ppm.std()
        self.y = ((train.ppm - self.mean) / self.scale).to(dtype)
        self.log = {
            name: torch.tensor(math.log(p.start), dtype=dtype, requires_grad=True)
            for name, p in PARAMETERS.items()
        }
        self._distances = self._distances_to_train(train.years)

    def value(self, algebra: Algebra = LAPGRAD) -> Tensor:
        """The criterion at the present parameters."""
        return criterion(self._covariance_of_train(), self.y, algebra)

    def parameters(self) -> list[Tensor]:
        """The leaves that learning changes."""
        return list(self.log.values())

    def shown(self, name: str) -> float:
        """A parameter in the unit of its table row: variances as amplitudes in ppm."""
        value = float(self.log[name].detach().exp())
        return math.sqrt(value) * float(self.scale) if name.endswith("variance") else value

    @torch.no_grad()
    def predict(self, years: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, in ppm, of measurements at the given times."""
        L = lg.potrf(self._covariance_of_train())
        z = lg.trsm(L, self.y[:, None])
        V = lg.trsm(L, self._kernel(*self._distances_to_train(years)))
        variances = [self.log[name].exp() for name in PARAMETERS if name.endswith("variance")]
        variance = torch.stack(variances).sum() - V.square().sum(0)
        mean = (V.mT @ z)[:, 0]
        return mean * self.scale + self.mean, variance.clamp_min(0).sqrt() * self.scale

    @torch.no_grad()
    def season(self, years: Tensor) -> Tensor:
        """What the seasonal kernel alone contributes to the mean, in ppm."""
        L = lg.potrf(self._covariance_of_train())
        weights = lg.trsm(L, lg.trsm(L, self.y[:, None]), transpose=True)
        _, season, _ = self._kernels(*self._distances_to_train(years))
        return (season.mT @ weights)[:, 0] * self.scale

    def _distances_to_train(self, years: Tensor) -> tuple[Tensor, Tensor]:
        """d² and sin²(πd) of shape (train, years): all the kernels need of the data."""
        d = self.train.years[:, None] - years
        return d.square().to(self.dtype), torch.sin(math.pi * d).square().to(self.dtype)

    def _covariance_of_train(self) -> Tensor:
        noise = self.log["noise_variance"].exp() + _JITTER[self.dtype]
        return self._kernel(*self._distances) + noise * torch.eye(len(self.y), dtype=self.dtype)

    def _kernel(self, squared: Tensor, sine: Tensor) -> Tensor:
        trend, season, weather = self._kernels(squared, sine)
        return trend + season + weather

    def _kernels(self, squared: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = {name: log.exp() for name, log in self.log.items()}
        b = p["weather_mixture"]
        trend = p["trend_variance"] * torch.exp(-0.5 * squared / p["trend_length"] ** 2)
        season = p["season_variance"] * torch.exp(
            -0.5 * squared / p["season_length"] ** 2 - 2 * sine / p["season_width"] ** 2
        )
        weather = p["weather_variance"] * torch.exp(
            -b * torch.log1p(squared / (2 * b * p["weather_length"] ** 2))
        )
        return trend, season, weather


def learn(
    model: CarbonModel, steps: int, progress: Callable[[float], None] = lambda value: None
) -> list[float]:
    """Adam on the criterion; `progress` is called with its value after each step. Returns all values."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    values = []
    for _ in range(steps):
        optimiser.zero_grad()
        value = model.value()
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
        progress(values[-1])
    return values
