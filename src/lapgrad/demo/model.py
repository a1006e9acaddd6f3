"""The model of the demonstration: a Gaussian process of time, the sum of three kernels.

With the distance d of two times, in years, the kernels are

    trend      a exp(−d² / 2 l²)
    season     a exp(−d² / 2 l² − 2 sin²(πd) / w²)     period one year; its shape drifts over l years
    weather    a (1 + d² / 2 b l²)^−b                  irregularities of several time scales
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

import lapgrad as lg
from lapgrad.demo.carbon import FIRST_TEST_YEAR, Series
from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF, Periodic, RationalQuadratic, Sum

_NOISE_FLOOR = {torch.float64: 1e-8, torch.float32: 1e-4}
"""Least noise variance, relative to the variance of the data: keeps the covariance positive definite."""
_LEARNING_RATE = 0.05
_SEASON = 1
"""Position of the seasonal kernel in the sum."""


@dataclass(frozen=True)
class Parameter:
    """How a hyper-parameter is printed: variances as amplitudes, in the unit of the data."""

    name: str
    text: str
    unit: str

    def read(self, model: GPRegression) -> float:
        """Return the value that is printed."""
        value = model.hyperparameters()[self.name].item()
        return math.sqrt(value) if self.text.endswith("amplitude") else value


PARAMETERS = (
    Parameter("kernel.parts.0.variance", "trend: amplitude", "ppm"),
    Parameter("kernel.parts.0.lengthscale", "trend: length", "years"),
    Parameter("kernel.parts.1.parts.0.variance", "season: amplitude", "ppm"),
    Parameter("kernel.parts.1.parts.1.lengthscale", "season: drift length", "years"),
    Parameter("kernel.parts.1.parts.0.lengthscale", "season: smoothness", ""),
    Parameter("kernel.parts.2.variance", "weather: amplitude", "ppm"),
    Parameter("kernel.parts.2.lengthscale", "weather: length", "years"),
    Parameter("kernel.parts.2.mixture", "weather: shape", ""),
    Parameter("noise_var", "noise: amplitude", "ppm"),
)


def make_model(train: Series, dtype: torch.dtype = torch.float64) -> GPRegression:
    """Return the model before learning, with the mean of the process fixed to that of the data."""
    variance = train.ppm.var().item()
    trend = RBF(lengthscale=50.0, variance=10.0 * variance)
    cycle = Periodic(period=1.0, lengthscale=1.0, variance=0.1 * variance)
    season = cycle * RBF(lengthscale=60.0, variance=1.0)
    weather = RationalQuadratic(lengthscale=1.0, variance=0.01 * variance)
    model = GPRegression(
        to_inputs(train.years, dtype),
        train.ppm.to(dtype),
        trend + season + weather,
        noise_var=1e-3 * variance,
        noise_floor=_NOISE_FLOOR[dtype] * variance,
        normalise=False,
    )
    # The period of a year is known, and the product of two kernels needs one variance only.
    model.fix("kernel.parts.1.parts.0.period", "kernel.parts.1.parts.1.variance", "constant")
    return model


def to_inputs(years: Tensor, dtype: torch.dtype) -> Tensor:
    """Return times as the model takes them: years from 1988 on, small numbers that float32 can resolve."""
    return (years - FIRST_TEST_YEAR).to(dtype)


def learn(model: GPRegression, steps: int, *, progress: bool = False) -> list[float]:
    """Learn the hyper-parameters by Adam; return the criterion at every step."""
    return model.fit("adam", steps=steps, lr=_LEARNING_RATE, tolerance=0.0, progress=progress).history


@torch.no_grad()
def predict(model: GPRegression, years: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of measurements, in ppm and in float64."""
    mean, variance = model.predict(to_inputs(years, model.X.dtype), noise=True)
    return mean.double(), variance.sqrt().double()


@torch.no_grad()
def predict_season(model: GPRegression, years: Tensor) -> Tensor:
    """Return the part of the mean that comes from the seasonal kernel k: k(x, X) A⁻¹ (y − mean), in ppm."""
    season = cast(Sum, model.kernel).kernels()[_SEASON]
    A = model.kernel(model.X)
    A.diagonal().add_(model.noise_var)
    weights = lg.linalg.solve_psd(A, model.y - model.constant)
    return (season(to_inputs(years, model.X.dtype), model.X) @ weights)[:, 0].double()
