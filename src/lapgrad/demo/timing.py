"""Value and gradient of the criterion of Gaussian process regression: lapgrad and torch.linalg in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF


@dataclass(frozen=True)
class Comparison:
    """Median seconds for value and gradient."""

    what: str
    lapgrad: float
    torch: float

    @property
    def speedup(self) -> float:
        """How many times faster lapgrad is."""
        return self.torch / self.lapgrad


def compare_with_torch(what: str, model: GPRegression, seconds: float) -> Comparison:
    """Time the loss of a model with its gradient against the same criterion written with torch.linalg."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def make_evaluation(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), parameters)

    sides = [make_evaluation(model.loss), make_evaluation(lambda: compute_loss_with_torch(model))]
    return Comparison(what, *_time_in_turns(sides, seconds))


def compute_loss_with_torch(model: GPRegression) -> Tensor:
    """Return −log N(y | mean, A) for A = K + noise·I, with torch.linalg; the kernel matrix K is the model's.

    With A = L Lᵀ and z = L⁻¹ (y − mean) it is ½ (‖z‖² + n log 2π) + log |L|.
    """
    n = len(model.X)
    identity = torch.eye(n, dtype=model.X.dtype)
    residuals = model.y - model.constant if model.mean == "constant" else model.y
    L = torch.linalg.cholesky(model.kernel(model.X) + model.noise_var * identity)
    z = torch.linalg.solve_triangular(L, residuals, upper=False)
    return 0.5 * (z.square().sum() + n * math.log(2 * math.pi)) + L.diagonal().log().sum()


def make_random_model(n: int, dtype: torch.dtype, seed: int) -> GPRegression:
    """Return the paper's model on n random points: one RBF kernel with a lengthscale for each of 8 inputs."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 8, dtype=dtype, generator=generator)
    y = torch.randn(n, dtype=dtype, generator=generator)
    return GPRegression(X, y, RBF(torch.ones(8), variance=1.0), noise_var=1.0, mean="zero", normalise=False)


def _time_in_turns(functions: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the median seconds of each function. They take turns, so that all meet the same noise."""
    for function in functions:
        function()
    samples: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(samples[0]) < 5 or time.perf_counter() < end:
        for function, times in zip(functions, samples, strict=True):
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in samples]
