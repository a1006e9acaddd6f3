"""The criterion of Gaussian process regression and its gradient, by lapgrad and as written in torch.

Points lie in the unit cube of d dimensions. Every lengthscale is 0.3, the variance is 1, the noise 0.01, the
mean 0. The gradient is taken for the unconstrained form of these parameters, such as their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapgrad.models import GPRegression, kernels
from lapgrad_bench.bench.measure.timing import Thunk

KERNELS = ("rbf", "matern52")
_LENGTH, _VARIANCE, _NOISE = 0.3, 1.0, 0.01
WANTED_SPEEDUP, WANTED_MEMORY_RATIO = 2.5, 3.0
TOLERANCE = 1e-4
"""Largest relative difference of two values of the criterion: GPyTorch treats small distances differently."""


@dataclass(frozen=True)
class Problem:
    """Points X (n, d), observations y (n,), and the name of the kernel, one of `KERNELS`."""

    X: Tensor
    y: Tensor
    kernel: str

    @classmethod
    def generate(cls, n: int, d: int, kernel: str) -> Problem:
        """Return random points; observations are a sine of the first coordinate, with noise."""
        source = torch.Generator().manual_seed(0)
        X = torch.rand(n, d, generator=source, dtype=torch.float64)
        noise = torch.randn(n, generator=source, dtype=torch.float64)
        return cls(X, torch.sin(6.0 * X[:, 0]) + math.sqrt(_NOISE) * noise, kernel)

    def to(self, device: torch.device) -> Problem:
        """Return the problem on another device."""
        return Problem(self.X.to(device), self.y.to(device), self.kernel)

    def arguments(self) -> dict[str, Any]:
        """Return arrays and hyper-parameters for the process of another library."""
        return {
            "X": self.X.cpu().numpy(),
            "Y": self.y[:, None].cpu().numpy(),
            "kernel": self.kernel,
            "length": _LENGTH,
            "variance": _VARIANCE,
            "noise": _NOISE,
        }


def make_lapgrad_evaluation(problem: Problem) -> Thunk:
    """Return a function that evaluates ``GPRegression.loss`` and its gradient."""
    kind = {"rbf": kernels.RBF, "matern52": kernels.Matern52}[problem.kernel]
    kernel = kind([_LENGTH] * problem.X.shape[1], variance=_VARIANCE)
    model = GPRegression(problem.X, problem.y, kernel, noise_var=_NOISE, mean="zero", normalise=False)
    return _make_evaluation(model.loss, tuple(model.parameters()))


def make_torch_evaluation(problem: Problem) -> Thunk:
    """Return the same as a user of torch writes it: distances from a product, autograd through everything."""
    X, y = problem.X, problem.y[:, None]
    log_lengths, log_variance, log_noise = (
        X.new_full(shape, math.log(value)).requires_grad_()
        for shape, value in (((X.shape[1],), _LENGTH), ((), _VARIANCE), ((), _NOISE))
    )
    identity = torch.eye(len(X), dtype=X.dtype, device=X.device)

    def loss() -> Tensor:
        A = X / log_lengths.exp()
        squares = A.square().sum(-1)
        S = (squares[:, None] + squares - 2.0 * A @ A.mT).clamp_min(1e-30)
        t = (5.0 * S).sqrt()
        f = torch.exp(-0.5 * S) if problem.kernel == "rbf" else (1.0 + t + t**2 / 3.0) * torch.exp(-t)
        L = torch.linalg.cholesky(log_variance.exp() * f + log_noise.exp() * identity)
        z = torch.linalg.solve_triangular(L, y, upper=False)
        return 0.5 * (z.square().sum() + len(y) * math.log(2.0 * math.pi)) + L.diagonal().log().sum()

    return _make_evaluation(loss, (log_lengths, log_variance, log_noise))


def _make_evaluation(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Thunk:
    def evaluate() -> tuple[Tensor, ...]:
        value = loss()
        return value.detach(), *torch.autograd.grad(value, parameters)

    return evaluate
