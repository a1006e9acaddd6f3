"""Gaussian, with one variance or with one that depends on the inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._parameters import positive
from lapgrad.models._prediction import Prediction, compute_expected_log_density, compute_log_density
from lapgrad.models.likelihoods.base import (
    ElementwiseLikelihood,
    Likelihood,
    Start,
    integrate,
    place_nodes,
    require,
)

_LOG_2_PI = math.log(2.0 * math.pi)


class Gaussian(ElementwiseLikelihood):
    """y = f + noise, with one variance of the noise: one function per column of y. All integrals are exact.

    Args:
        noise_var: Variance of the noise, in standardised units, if the model standardises; learned.

    Example:
        >>> from lapgrad.models.likelihoods import Gaussian
        >>> Gaussian(noise_var=0.5).hyperparameters()["noise_var"].item()
        0.5
    """

    standardises = True
    noise_var = positive()

    def __init__(self, noise_var: float = 0.1) -> None:
        super().__init__()
        self.noise_var = noise_var

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless all are finite."""
        require(who, name, y.isfinite(), "finite")

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log N(y | f, noise_var)."""
        return compute_log_density(y - f, self.noise_var)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return E log N(y | f, noise_var), summed over the columns."""
        return compute_expected_log_density(y - mean, variance, self.noise_var).sum(-1)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log N(y | mean, variance + noise_var), summed over the columns."""
        return compute_log_density(y - mean, variance + self.noise_var).sum(-1)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and the variance of the noise."""
        return f, self.noise_var.expand_as(f)

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return f + noise."""
        normal = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + self.noise_var.sqrt() * normal

    def approximate(self, y: Tensor) -> Start:
        """Return the likelihood itself: y = f + noise, with f around the mean of y."""
        return Start(y.mean(0), y - y.mean(0), self.noise_var.detach())


class HeteroscedasticGaussian(Likelihood):
    """y = f_1 + noise, with the variance exp(f_2) of the noise: two functions, y one column.

    The expectation in the bound is exact; that of the density of new observations is exact over f_1, and a
    sum over 20 nodes over f_2.

    Args:
        noise_var: Variance of the noise from which the fit starts, in standardised units.

    Example:
        >>> import torch
        >>> from lapgrad.models.likelihoods import HeteroscedasticGaussian
        >>> likelihood = HeteroscedasticGaussian()
        >>> likelihood.count_functions(torch.zeros(3, 1))
        2
    """

    standardises = True

    def __init__(self, noise_var: float = 0.1) -> None:
        super().__init__()
        if not 0.0 < noise_var < math.inf:
            raise _exceptions.OptionError(
                f"HeteroscedasticGaussian: noise_var must be positive, got {noise_var!r}."
            )
        self.initial_noise_var = float(noise_var)

    def count_functions(self, y: Tensor) -> int:
        """Return 2."""
        return 2

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless y is one column of finite numbers."""
        if y.shape[1] != 1:
            raise _exceptions.OptionError(f"{who}: {name} must be one column for {type(self).__name__}.")
        require(who, name, y.isfinite(), "finite")

    def find_function_units(self, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return (scale, 1) and (shift, 2 log scale): f_2 is the logarithm of a variance."""
        return torch.stack((scale, torch.ones_like(scale))), torch.stack((shift[0], 2.0 * scale.log()))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log N(y | f_1, exp(f_2))."""
        return compute_log_density(y[..., 0] - f[..., 0], f[..., 1].exp())

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return -1/2 (E (y - f_1)^2 E exp(-f_2) + E f_2 + log 2 pi)."""
        squares = (y[..., 0] - mean[..., 0]).square() + variance[..., 0]
        precision = (0.5 * variance[..., 1] - mean[..., 1]).exp()
        return -0.5 * (squares * precision + mean[..., 1] + _LOG_2_PI)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log E N(y | mean_1, variance_1 + exp(f_2)) over f_2."""
        logarithms, weights = place_nodes(mean[..., 1], variance[..., 1])
        residuals = y[..., 0] - mean[..., 0]
        each = compute_log_density(residuals, variance[..., 0] + logarithms.exp())
        return (each + weights.log().view(-1, *(1,) * residuals.dim())).logsumexp(0)

    def predict_observations(self, mean: Tensor, variance: Tensor) -> Prediction:
        """Return mean and variance of y, (..., n, 1)."""
        noise = integrate(torch.exp, mean[..., 1], variance[..., 1])
        return Prediction(mean[..., :1], (variance[..., 0] + noise).unsqueeze(-1))

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return f_1 + noise, (..., n, 1)."""
        normal = torch.randn(f.shape[:-1], dtype=f.dtype, device=f.device, generator=generator)
        return (f[..., 0] + (0.5 * f[..., 1]).exp() * normal).unsqueeze(-1)

    def approximate(self, y: Tensor) -> Start:
        """Return y = f_1 + noise of constant variance, with f_1 around the mean of y, and a constant f_2."""
        centre, zeros = y.mean(0), torch.zeros_like(y)
        noise = centre.new_tensor([self.initial_noise_var])
        return Start(torch.cat((centre, noise.log())), torch.cat((y - centre, zeros), -1), noise[0])
