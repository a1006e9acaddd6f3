"""The criterion of a sparse Gaussian process and its gradient, by lapgrad and as written in torch.

The data are standardised. The kernel is RBF with one lengthscale per dimension, all of them 1; the variance
is 1, the noise 0.1, the jitter 1e-6. Inducing inputs are rows of the data. The gradient is taken for the
logarithms of variance, lengthscales and noise, and for all inducing inputs.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

import lapgrad as lg
from lapgrad.models.kernels import RBF
from lapgrad_bench import datasets
from lapgrad_bench.bench.measure.timing import Thunk, time_in_turns

INDUCING = (50, 200, 800, 3200)
_NOISE, _JITTER = 0.1, 1e-6

#: Speed-up over each library that must be reached, by the number of inducing inputs.
WANTED_SPEEDUPS = {
    "torch": dict(zip(INDUCING, (1.3, 1.7, 2.5, 3.0), strict=True)),
    "gpytorch": dict(zip(INDUCING, (1.5, 2.0, 2.5, 3.3), strict=True)),
    "gpy": dict(zip(INDUCING, (4.0, 4.0, 2.7, 2.0), strict=True)),
}
#: Megabytes that one evaluation may take, by the number of inducing inputs.
MOST_MEGABYTES = {800: 60.0, 3200: 600.0}
#: Largest relative difference of the criterion from lapgrad's. Other libraries add another jitter, which
#: changes the value when there are many inducing inputs.
TOLERANCES = {"torch": 1e-6, "gpytorch": 0.05, "gpy": 0.05, "gpflow": 0.05}
#: Largest relative error of float32, in units of its machine epsilon.
MOST_EPS = 100.0
#: Inputs, dimensions and inducing inputs of the large case, and what it must reach.
LARGE_N, LARGE_D, LARGE_INDUCING = 1_000_000, 8, 500
LARGE_MEGABYTES, LARGE_GROWTH = 1500.0, 1.15


@dataclass(frozen=True)
class Problem:
    """Standardised data X (n, d) and Y (n, 1), and the initial inducing inputs Z (U, d)."""

    X: Tensor
    Y: Tensor
    Z: Tensor

    @classmethod
    def select(cls, data: tuple[Tensor, Tensor], inducing: int) -> Problem:
        """Return a problem whose inducing inputs are random rows of the data, the same in every run.

        Sizes of `INDUCING` take rows from the first, second, ... permutation of one random generator.
        """
        X, Y = datasets.standardise(data[0]), datasets.standardise(data[1])[:, None]
        known = inducing in INDUCING
        source = numpy.random.default_rng(0 if known else inducing)
        permutations = [
            source.permutation(len(X)) for _ in range(INDUCING.index(inducing) + 1 if known else 1)
        ]
        return cls(X, Y, X[torch.from_numpy(permutations[-1][:inducing])].clone())

    def to(self, kind: torch.dtype | torch.device) -> Problem:
        """Return the problem in another dtype, or on another device."""
        return Problem(self.X.to(kind), self.Y.to(kind), self.Z.to(kind))

    def arguments(self) -> dict[str, Any]:
        """Return arrays and hyper-parameters for the process of another library."""
        arrays = {name: value.cpu().numpy() for name, value in vars(self).items()}
        return {**arrays, "length": 1.0, "variance": 1.0, "noise": _NOISE}


def make_lapgrad_evaluation(problem: Problem) -> Thunk:
    """Return a function that evaluates ``fused.sgp_nll`` with a kernel of the models, and its gradient."""
    X, Y, Z = problem.X, problem.Y, problem.Z.clone().requires_grad_()
    kernel = RBF(X.new_ones(X.shape[1]), X.new_ones(())).to(X)
    log_noise = X.new_tensor(math.log(_NOISE)).requires_grad_()
    leaves = (Z, log_noise, *kernel.parameters())

    def evaluate() -> tuple[Tensor, ...]:
        value = lg.fused.sgp_nll(kernel, Z, X, Y, log_noise.exp(), jitter=_JITTER)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return evaluate


def make_torch_evaluation(problem: Problem) -> Thunk:
    """Return the same as a user of torch writes it: distances from a product, autograd through everything."""
    X, Y, Z = problem.X, problem.Y, problem.Z.clone().requires_grad_()
    log_lengths, log_variance, log_noise = (
        X.new_full(shape, value).requires_grad_()
        for shape, value in (((X.shape[1],), 0.0), ((), 0.0), ((), math.log(_NOISE)))
    )
    leaves = (Z, log_noise, log_lengths, log_variance)
    identity = torch.eye(len(Z), dtype=X.dtype, device=X.device)

    def kernel(A: Tensor, B: Tensor) -> Tensor:
        A, B = A / log_lengths.exp(), B / log_lengths.exp()
        squares = A.square().sum(-1)[:, None] + B.square().sum(-1) - 2.0 * A @ B.mT
        return log_variance.exp() * torch.exp(-0.5 * squares.clamp_min(0.0))

    def evaluate() -> tuple[Tensor, ...]:
        n, noise, variance = len(X), log_noise.exp(), log_variance.exp()
        Lu = torch.linalg.cholesky(kernel(Z, Z) + _JITTER * variance * identity)
        B = torch.linalg.solve_triangular(Lu, kernel(Z, X), upper=False)
        Lm = torch.linalg.cholesky(identity + B @ B.mT / noise)
        c = torch.linalg.solve_triangular(Lm, B @ Y, upper=False) / noise
        squares = Y.square().sum() / noise - c.square().sum()
        determinant = n * torch.log(2.0 * math.pi * noise) + 2.0 * Lm.diagonal().log().sum()
        value = 0.5 * (squares + determinant + (n * variance - B.square().sum()) / noise)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return evaluate


def measure_float32_error(problem: Problem) -> float:
    """Return the largest relative error of float32, of the value and the gradients, in float32 epsilons.

    The reference is float64 at the same numbers, rounded to float32. The error of a gradient is relative to
    its largest entry.
    """
    single = problem.to(torch.float32)
    evaluations = (make_lapgrad_evaluation(single), make_lapgrad_evaluation(single.to(torch.float64)))
    pairs = zip(*(evaluate() for evaluate in evaluations), strict=True)
    largest = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
    return largest / torch.finfo(torch.float32).eps


def make_large_problem(n: int = LARGE_N) -> Problem:
    """Return a problem of n made-up points."""
    return Problem.select(datasets.make_stand_in(n, LARGE_D), LARGE_INDUCING)


def measure_growth(seconds: float) -> float:
    """Return the time of the large problem divided by that of four times a quarter of it: 1 is linear."""
    problems = (make_large_problem(LARGE_N // 4), make_large_problem())
    evaluations = [make_lapgrad_evaluation(problem) for problem in problems]
    quarter, whole = time_in_turns(evaluations, seconds, least_rounds=1)
    return whole.median / (4.0 * quarter.median)


def load_power_or_stand_in(folder: Path | None) -> tuple[tuple[Tensor, Tensor], str]:
    """Return the data set *power* and its name, or made-up data with a message on stderr if it is missing."""
    try:
        return load_data("power", folder), "power"
    except FileNotFoundError as missing:
        print(f"{missing}\nMade-up data of the same size are used.", file=sys.stderr)
        return load_data("made up"), "made up"


def load_data(name: str, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """Return the data that `load_power_or_stand_in` returned with this name."""
    return datasets.load("power", folder) if name == "power" else datasets.make_stand_in()
