"""Summaries of fitted state space models: standard errors, information criteria, tests of the residuals."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

_FLAT = 1e-6
"""A parameter whose curvature is less than this part of an observation's has no standard error."""


class ResidualTests(NamedTuple):
    """Tests of standardised one-step residuals, which are independent N(0, 1) if the model is right.

    Attributes:
        ljung_box: Q of Ljung and Box: autocorrelations up to ``lags``, χ² with that many degrees of freedom.
        lags: How many.
        ljung_box_p: Its p-value.
        jarque_bera: Skewness and kurtosis, χ² with 2 degrees of freedom.
        jarque_bera_p: Its p-value.
        heteroskedasticity: Sum of squares of the last third over that of the first, F distributed.
        heteroskedasticity_p: Its two-sided p-value.
        skewness: Of the residuals; 0 for a normal distribution.
        kurtosis: Of the residuals; 3 for a normal distribution.
    """

    ljung_box: float
    lags: int
    ljung_box_p: float
    jarque_bera: float
    jarque_bera_p: float
    heteroskedasticity: float
    heteroskedasticity_p: float
    skewness: float
    kurtosis: float


def check_residuals(residuals: Tensor, lags: int | None = None) -> ResidualTests:
    """Test residuals (n,); NaN are left out. ``lags`` None: 10, or a fifth of a short series."""
    z = residuals[~residuals.isnan()].double().cpu()
    n = len(z)
    if n < 6:
        return ResidualTests(math.nan, 0, *(math.nan,) * 7)
    lags = max(1, min(10, n // 5)) if lags is None else lags
    correlations = compute_autocorrelations(z, lags)
    weights = n - torch.arange(1, lags + 1, dtype=z.dtype)
    box = float(n * (n + 2) * (correlations.square() / weights).sum())
    centred = z - z.mean()
    variance = float(centred.square().mean())
    skewness = float((centred**3).mean()) / variance**1.5
    kurtosis = float((centred**4).mean()) / variance**2
    normality = n / 6 * (skewness**2 + (kurtosis - 3) ** 2 / 4)
    third = max(1, round(n / 3))
    ratio = float(z[-third:].square().sum() / z[:third].square().sum())
    tail = compute_f_tail(max(ratio, 1 / ratio), third, third)
    return ResidualTests(
        box,
        lags,
        _compute_chi_square_tail(box, lags),
        normality,
        _compute_chi_square_tail(normality, 2),
        ratio,
        min(1.0, 2.0 * tail),
        skewness,
        kurtosis,
    )


def compute_autocorrelations(z: Tensor, lags: int) -> Tensor:
    """Return the autocorrelations of residuals (n,) at lags 1, ..., lags."""
    centred = z - z.mean()
    total = centred.square().sum()
    return torch.stack([(centred[k:] * centred[:-k]).sum() / total for k in range(1, lags + 1)])


def _compute_chi_square_tail(x: float, degrees: int) -> float:
    half = torch.tensor(0.5 * degrees, dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor(0.5 * x, dtype=torch.float64)))


def compute_f_tail(x: float, first: float, second: float) -> float:
    """Return P(F > x) of an F distribution: an incomplete beta function, by its continued fraction.

    I_w(a, b) with w = second / (second + first x), a = second / 2, b = first / 2; W. Press et al., Numerical
    Recipes, 6.4.
    """
    a, b, w = 0.5 * second, 0.5 * first, second / (second + first * x)
    if w > (a + 1) / (a + b + 2):
        return 1.0 - compute_f_tail(1.0 / x, second, first)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(w) + b * math.log1p(-w)
    c, d = 1.0, 1.0 / (1.0 - (a + b) * w / (a + 1.0))
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * w / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / (1.0 + even * d), 1.0 + even / c
        fraction *= c * d
        odd = -(a + m) * (a + b + m) * w / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / (1.0 + odd * d), 1.0 + odd / c
        fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return math.exp(logs) * fraction / a


class Estimate(NamedTuple):
    """One hyper-parameter.

    Attributes:
        name: As in ``hyperparameters``; with an index for one of several numbers.
        value: In its own units.
        error: Standard error; NaN where there is none.
        note: Why it has no standard error: "fixed", "at its bound", "not at a maximum of the likelihood";
            else "".
    """

    name: str
    value: float
    error: float
    note: str


def compute_errors(hessian: Tensor, slopes: Tensor, observed: int) -> Tensor:
    """Return standard errors (k,) in the units of the parameters; NaN for those the data do not determine.

    The covariance of the unconstrained parameters is the inverse of the Hessian of the negative log
    likelihood, and ``slopes`` are the derivatives of the values by them (the delta method). Where the
    curvature is nearly zero, or negative, a variance has become zero: its estimate lies on the bound of its
    range, and has no standard error.

    Args:
        hessian: (k, k).
        slopes: (k,).
        observed: How many observations there are.
    """
    usable = torch.tensor(
        [not is_flat(curvature, observed) for curvature in hessian.diagonal()], dtype=torch.bool
    )
    errors = torch.full_like(slopes, torch.nan)
    if bool(usable.any()):
        part = hessian[usable][:, usable]
        values, vectors = torch.linalg.eigh(part)
        if bool(values[0] > 0):
            variances = (vectors.square() / values).sum(-1)
            errors[usable] = slopes[usable].abs() * variances.sqrt()
    return errors


def is_flat(curvature: Tensor, observed: int) -> bool:
    """Return whether the likelihood has nearly no curvature in one parameter."""
    return bool(curvature.abs() <= _FLAT * observed)


@dataclasses.dataclass(frozen=True)
class SeriesSummary:
    """A fitted state space model in numbers; ``print`` shows them as a table.

    Attributes:
        title: The model.
        log_likelihood: Of all series together.
        observed: How many observations are not missing.
        diffuse: How many states have a flat prior, over all series: as many observations determine them.
        parameters: How many numbers are learned.
        aic: -2 log likelihood + 2 k, with k = parameters + diffuse: initial states count as estimated (Durbin
            and Koopman), as in statsmodels.
        bic: -2 log likelihood + k log(observed).
        hqic: -2 log likelihood + 2 k log(log(observed)).
        estimates: The hyper-parameters.
        residuals: Tests of the residuals of each value that is observed.
    """

    title: str
    log_likelihood: float
    observed: int
    diffuse: int
    parameters: int
    estimates: list[Estimate]
    residuals: list[ResidualTests]

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return -2 * self.log_likelihood + 2 * (self.parameters + self.diffuse)

    @property
    def bic(self) -> float:
        """The Bayesian criterion of Schwarz."""
        return -2 * self.log_likelihood + math.log(self.observed) * (self.parameters + self.diffuse)

    @property
    def hqic(self) -> float:
        """The criterion of Hannan and Quinn."""
        penalty = 2 * math.log(math.log(max(3, self.observed)))
        return -2 * self.log_likelihood + penalty * (self.parameters + self.diffuse)

    def __str__(self) -> str:
        width = max([len(estimate.name) for estimate in self.estimates] + [9])
        lines = [
            self.title,
            f"observations {self.observed}, diffuse states {self.diffuse}, parameters {self.parameters}",
            f"log likelihood {self.log_likelihood:.4f}",
            f"AIC {self.aic:.3f}   BIC {self.bic:.3f}   HQIC {self.hqic:.3f}",
            "",
            f"{'parameter':<{width}}  {'value':>12}  {'std. error':>12}  95% interval",
        ]
        for name, value, error, note in self.estimates:
            if note or math.isnan(error):
                shown = note or "not determined"
                lines.append(f"{name:<{width}}  {value:>12.6g}  {'':>12}  {shown}")
            else:
                low, high = value - 1.96 * error, value + 1.96 * error
                lines.append(f"{name:<{width}}  {value:>12.6g}  {error:>12.4g}  [{low:.4g}, {high:.4g}]")
        lines += ["", "residuals (standardised, one step ahead)"]
        for i, found in enumerate(self.residuals):
            lines += [
                *([f"value {i}"] if len(self.residuals) > 1 else []),
                f"  Ljung-Box Q({found.lags}) {found.ljung_box:.2f}, p = {found.ljung_box_p:.3f}",
                f"  Jarque-Bera {found.jarque_bera:.2f}, p = {found.jarque_bera_p:.3f} "
                f"(skewness {found.skewness:.2f}, kurtosis {found.kurtosis:.2f})",
                f"  heteroskedasticity {found.heteroskedasticity:.2f}, p = {found.heteroskedasticity_p:.3f}",
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)
