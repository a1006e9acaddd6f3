"""The criterion of Gaussian process regression, value and gradient, against others: time and memory.

    lapgrad bench gp [--sizes 1000,3000] [--kernels rbf,matern52] [--threads 2]

The setup: points in the unit cube of d dimensions, one lengthscale of 0.3 per dimension, variance 1, noise
0.01, mean 0; the gradient is that of logarithms (or the like) of all of these. Peers take turns with lapgrad
in one process; GPyTorch, with its Cholesky mode, is compared with where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad.models import GPRegression, kernels
from lapgrad_bench.bench import report
from lapgrad_bench.bench.bars import Bar, Bench, judge
from lapgrad_bench.bench.machine import metadata
from lapgrad_bench.bench.memory import measurable, peak_extra_bytes
from lapgrad_bench.bench.peer_worker import in_gpytorch
from lapgrad_bench.bench.timing import Thunk, interleaved

KERNELS = ("rbf", "matern52")
_LENGTH, _NOISE = 0.3, 0.01
FASTER, SMALLER = 2.5, 3.0
DIFFERENT = 1e-4
"""Relative difference of two values of the criterion: GPyTorch has a rule of its own for small distances."""


@dataclass(frozen=True)
class Problem:
    """Points X (n, d), observations y (n,), and the name of the kernel."""

    X: Tensor
    y: Tensor
    kernel: str

    @classmethod
    def of(cls, n: int, d: int, kernel: str) -> Problem:
        """A sine of the first coordinate, with noise."""
        source = torch.Generator().manual_seed(0)
        X = torch.rand(n, d, generator=source, dtype=torch.float64)
        noise = torch.randn(n, generator=source, dtype=torch.float64)
        return cls(X, torch.sin(6.0 * X[:, 0]) + math.sqrt(_NOISE) * noise, kernel)

    def to(self, device: torch.device) -> Problem:
        """Elsewhere."""
        return Problem(self.X.to(device), self.y.to(device), self.kernel)

    def arguments(self) -> dict[str, Any]:
        """For other libraries: arrays, and the hyper-parameters."""
        return {
            "X": self.X.cpu().numpy(),
            "Y": self.y[:, None].cpu().numpy(),
            "kernel": self.kernel,
            "length": _LENGTH,
            "variance": 1.0,
            "noise": _NOISE,
        }


def ours(problem: Problem) -> Thunk:
    """lapgrad: ``GPRegression.loss``."""
    kind = {"rbf": kernels.RBF, "matern52": kernels.Matern52}[problem.kernel]
    kernel = kind([_LENGTH] * problem.X.shape[1])
    model = GPRegression(problem.X, problem.y, kernel, noise_var=_NOISE, mean="zero")
    return _evaluation(model.loss, tuple(model.parameters()))


def written_out(problem: Problem) -> Thunk:
    """The same as a user of torch writes it: distances by a product, and autograd through everything."""
    X, y = problem.X, problem.y[:, None]
    log_lengths, log_variance, log_noise = (
        X.new_full(shape, math.log(value)).requires_grad_()
        for shape, value in (((X.shape[1],), _LENGTH), ((), 1.0), ((), _NOISE))
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

    return _evaluation(loss, (log_lengths, log_variance, log_noise))


def gpytorch(problem: Problem) -> Thunk:
    """GPyTorch's ``ExactGP`` with Cholesky factorisations in place of conjugate gradients."""
    return in_gpytorch.Library("cpu", torch.get_num_threads()).exact_gp(**problem.arguments())


def _evaluation(loss: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Thunk:
    def evaluate() -> tuple[Tensor, ...]:
        value = loss()
        return value.detach(), *torch.autograd.grad(value, leaves)

    return evaluate


def _figures(sizes: Sequence[int], d: int, names: Sequence[str]) -> Iterator[Bar]:
    peers = [("torch", written_out)]
    peers += [("GPyTorch", gpytorch)] if importlib.util.find_spec("gpytorch") else []
    for n in sizes:
        for kernel in names:
            problem = Problem.of(n, d, kernel)
            for name, peer in peers:
                what = f"{kernel}, n = {n}, {name} / lapgrad"
                yield Bar(f"{what}, memory", "≥", SMALLER, _memory(problem, peer))
                yield Bar(f"{what}, time", "≥", FASTER, _speedup(problem, peer))


def _memory(problem: Problem, peer: Callable[[Problem], Thunk]) -> Callable[[Bench], float]:
    def value(bench: Bench) -> float:
        if not measurable():
            return math.nan
        own, other = (peak_extra_bytes(make(problem)) for make in (ours, peer))
        matrix = 8 * len(problem.X) ** 2
        _note(problem, peer, f"{own / matrix:.2f} n²", f"{other / matrix:.2f} n²")
        return other / own if own else math.nan  # too small to be seen

    return value


def _speedup(problem: Problem, peer: Callable[[Problem], Thunk]) -> Callable[[Bench], float]:
    def value(bench: Bench) -> float:
        mine, theirs = ours(problem), peer(problem)
        difference = abs(float(theirs()[0]) / float(mine()[0]) - 1.0)
        if not difference < DIFFERENT:
            raise AssertionError(f"{peer.__name__}: the values differ by {difference:.1e}")
        own, other = interleaved([mine, theirs], bench.seconds, least_rounds=3)
        _note(problem, peer, f"{own.median:.3g} s", f"{other.median:.3g} s")
        return other.median / own.median

    return value


def _note(problem: Problem, peer: Callable[[Problem], Thunk], own: str, other: str) -> None:
    text = f"  {problem.kernel}, n = {len(problem.X)}: {own}, {peer.__name__} {other}"
    print(text, file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the benchmark."""
    parser.add_argument("--sizes", type=_numbers, default=[1000, 3000], help="observations [1000,3000]")
    parser.add_argument("--dimensions", type=int, default=8, help="of the points [8]")
    parser.add_argument("--kernels", type=_names, default=list(KERNELS), help=f"[{','.join(KERNELS)}]")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="[torch's]")
    parser.add_argument("--seconds", type=float, default=5.0, help="per comparison [5]")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--output", type=Path, help="write figures and machine to this JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes; returns the exit code."""
    bench = Bench(arguments.threads, arguments.seconds)
    figures = _figures(arguments.sizes, arguments.dimensions, arguments.kernels)
    verdicts = [judge(bar, bench) for bar in figures]
    table = report.bars_table(verdicts)
    if arguments.markdown:
        print(f"{report.markdown(table)}\n\n{report.circumstances([arguments.threads])}")
    else:
        report.show(table, "exact GP, value and gradient")
    if arguments.output:
        content = {"machine": metadata(), "bars": [verdict.as_dict() for verdict in verdicts]}
        arguments.output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: 1000,3000 was wanted") from None


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(KERNELS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    return names
