"""The criterion of a sparse Gaussian process, value and gradient, against others: time, memory, float32.

    python -m lapgrad_bench.bench.sparse_gp --data-dir DIR [--inducing 50,200,800,3200] [--threads 2]

The setup: all data standardised, RBF with one lengthscale per dimension, all of them 1, variance 1, noise
0.1, jitter 1e-6, inducing inputs that are rows of the data. The gradient is that of logarithms of variance,
lengthscales and noise, and of all inducing inputs. Peers take turns with lapgrad in one process; GPyTorch
and GPy are compared with where they are installed.
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

import numpy
import torch
from torch import Tensor

import lapgrad as lg
from lapgrad.models.kernels import RBF
from lapgrad_bench import datasets
from lapgrad_bench.bench import report
from lapgrad_bench.bench.bars import Bar, Bench, Verdict, judge
from lapgrad_bench.bench.machine import metadata
from lapgrad_bench.bench.memory import measurable, peak_extra_bytes
from lapgrad_bench.bench.peer_worker import in_gpy, in_gpytorch
from lapgrad_bench.bench.timing import Thunk, interleaved

INDUCING = (50, 200, 800, 3200)
_NOISE, _JITTER = 0.1, 1e-6
_MEGABYTE = 1e6

#: How many times faster than others, by library, to be with these numbers of inducing inputs.
FASTER = {
    "torch": dict(zip(INDUCING, (1.3, 1.7, 2.5, 3.0), strict=True)),
    "gpytorch": dict(zip(INDUCING, (1.5, 2.0, 2.5, 3.3), strict=True)),
    "gpy": dict(zip(INDUCING, (4.0, 4.0, 2.7, 2.0), strict=True)),
}
#: Megabytes of one evaluation, at most.
MEMORY = {800: 60.0, 3200: 600.0}
#: How far values may be apart, relative: others have a jitter of their own, which the value feels at many
#: inducing inputs.
DIFFERENT = {"torch": 1e-6, "gpytorch": 0.05, "gpy": 0.05, "gpflow": 0.05}
_FLOAT32 = 100.0  # in units of the machine epsilon of float32


@dataclass(frozen=True)
class Problem:
    """Standardised data X (n, d), Y (n, 1), and where the inducing inputs Z (U, d) start."""

    X: Tensor
    Y: Tensor
    Z: Tensor

    @classmethod
    def of(cls, data: tuple[Tensor, Tensor], inducing: int) -> Problem:
        """Inducing inputs are rows from a permutation: for sizes in the table the first, second, ..."""
        X, Y = datasets.standardised(data[0]), datasets.standardised(data[1])[:, None]
        known = inducing in INDUCING
        source = numpy.random.default_rng(0 if known else inducing)
        permutations = [
            source.permutation(len(X)) for _ in range(INDUCING.index(inducing) + 1 if known else 1)
        ]
        return cls(X, Y, X[torch.from_numpy(permutations[-1][:inducing])].clone())

    def to(self, kind: torch.dtype | torch.device) -> Problem:
        """In another dtype, or elsewhere."""
        return Problem(self.X.to(kind), self.Y.to(kind), self.Z.to(kind))

    def arguments(self) -> dict[str, Any]:
        """For other libraries: arrays, and the hyper-parameters."""
        arrays = {name: value.cpu().numpy() for name, value in vars(self).items()}
        return {**arrays, "length": 1.0, "variance": 1.0, "noise": _NOISE}


def ours(problem: Problem) -> Thunk:
    """lapgrad: ``fused.sgp_nll`` with the kernel of the models."""
    X, Y, Z = problem.X, problem.Y, problem.Z.clone().requires_grad_()
    kernel = RBF(X.new_ones(X.shape[1]), X.new_ones(())).to(X)
    log_noise = X.new_tensor(math.log(_NOISE)).requires_grad_()
    leaves = (Z, log_noise, *kernel.parameters())

    def evaluate() -> tuple[Tensor, ...]:
        value = lg.fused.sgp_nll(kernel, Z, X, Y, log_noise.exp(), jitter=_JITTER)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return evaluate


def written_out(problem: Problem) -> Thunk:
    """The same as a user of torch writes it: distances by a product, and autograd through everything."""
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


def gpytorch(problem: Problem) -> Thunk:
    """GPyTorch's ``InducingPointKernel`` in an exact GP."""
    return in_gpytorch.Library("cpu", torch.get_num_threads()).sparse_gp(**problem.arguments())


def gpy(problem: Problem) -> Thunk:
    """GPy's ``SparseGPRegression``; NumPy has its own threads."""
    return in_gpy.Library("cpu", torch.get_num_threads()).sparse_gp(**problem.arguments())


def _figures(data: tuple[Tensor, Tensor], sizes: Sequence[int], million: bool) -> Iterator[Bar]:
    # Memory first: in a heap with holes left by others a peak is larger than what is asked for.
    for size in sizes:
        limit = MEMORY.get(size, math.inf)
        yield Bar(f"U = {size}, extra memory", "≤", limit, _extra_memory(data, size), " MB")
    peers = [("torch autograd", written_out, FASTER["torch"])]
    peers += [("GPyTorch", gpytorch, FASTER["gpytorch"])] if _installed("gpytorch") else []
    peers += [("GPy", gpy, FASTER["gpy"])] if _installed("GPy") else []
    for name, peer, bounds in peers:
        for size in sizes:
            bound = bounds.get(size, 1.0)
            yield Bar(f"U = {size}, {name} / lapgrad", "≥", bound, _speedup(data, size, peer))
    for size in sizes:
        what = f"U = {size}, float32 against float64, largest relative difference"
        yield Bar(what, "≤", _FLOAT32, _difference(data, size), " eps")
    if million:
        yield Bar("n = 1,000,000, d = 8, U = 500, extra memory", "≤", 1500.0, _memory_of_a_million, " MB")
        yield Bar("n = 1,000,000 / n = 250,000, time, over 4", "≤", 1.15, _growth)


def _speedup(
    data: tuple[Tensor, Tensor], size: int, peer: Callable[[Problem], Thunk]
) -> Callable[[Bench], float]:
    def value(bench: Bench) -> float:
        problem = Problem.of(data, size)
        mine, theirs = ours(problem), peer(problem)
        difference = abs(float(theirs()[0]) / float(mine()[0]) - 1.0)
        if not difference < DIFFERENT.get(peer.__name__, DIFFERENT["torch"]):
            raise AssertionError(
                f"{peer.__name__}: the values differ by {difference:.1e}: not the same criterion"
            )
        seconds = bench.seconds * (10.0 if size >= 3200 else 3.0 if size >= 800 else 1.0)
        own, other = interleaved([mine, theirs], seconds, least_rounds=3)
        print(
            f"  U = {size}: {own.median:.4g} s, {peer.__name__} {other.median:.4g} s",
            file=sys.stderr,
            flush=True,
        )
        return other.median / own.median

    return value


def _extra_memory(data: tuple[Tensor, Tensor], size: int) -> Callable[[Bench], float]:
    def value(bench: Bench) -> float:
        return peak_extra_bytes(ours(Problem.of(data, size))) / _MEGABYTE if measurable() else math.nan

    return value


def _difference(data: tuple[Tensor, Tensor], size: int) -> Callable[[Bench], float]:
    """Of the value and of each gradient, relative to its largest entry, at the same (rounded) numbers."""

    def value(bench: Bench) -> float:
        single = Problem.of(data, size).to(torch.float32)
        pairs = zip(ours(single)(), ours(single.to(torch.float64))(), strict=True)
        largest = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
        return largest / torch.finfo(torch.float32).eps

    return value


def _million(n: int = 1_000_000) -> Problem:
    return Problem.of(datasets.stand_in(n, 8), 500)


def _memory_of_a_million(bench: Bench) -> float:
    return peak_extra_bytes(ours(_million())) / _MEGABYTE if measurable() else math.nan


def _growth(bench: Bench) -> float:
    quarter, whole = interleaved([ours(_million(250_000)), ours(_million())], bench.seconds, least_rounds=1)
    print(f"  n = 1,000,000: {whole.median:.4g} s", file=sys.stderr, flush=True)
    return whole.median / (4.0 * quarter.median)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def power_or_stand_in(folder: Path | None) -> tuple[tuple[Tensor, Tensor], str]:
    """The data and their name; a message where they are made up."""
    try:
        return data_named("power", folder), "power"
    except FileNotFoundError as missing:
        print(f"{missing}\nMade-up data of the same size are used.", file=sys.stderr)
        return data_named("made up"), "made up"


def data_named(name: str, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """The data that `power_or_stand_in` gave this name."""
    return datasets.load("power", folder) if name == "power" else datasets.stand_in()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the benchmark."""
    sizes = ",".join(map(str, INDUCING))
    parser.add_argument(
        "--data-dir", type=Path, help=f"where {datasets.POWER.file} is [LAPGRAD_DATA]; missing: made-up data"
    )
    parser.add_argument(
        "--inducing", type=_sizes, default=list(INDUCING), help=f"numbers of inducing inputs [{sizes}]"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="[torch's]")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="per comparison; more for many inducing inputs [2]"
    )
    parser.add_argument("--rows", type=int, help="use only so many rows of the data")
    parser.add_argument("--million", action="store_true", help="also a million points")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--output", type=Path, help="write figures and machine to this JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes; returns the exit code."""
    data, _ = power_or_stand_in(arguments.data_dir)
    data = (data[0][: arguments.rows], data[1][: arguments.rows])
    bench = Bench(arguments.threads, arguments.seconds)
    figures = _figures(data, arguments.inducing, arguments.million)
    verdicts: list[Verdict] = [judge(bar, bench) for bar in figures]
    table = report.bars_table(verdicts)
    title = f"sparse GP, n = {len(data[0])}, value and gradient"
    if arguments.markdown:
        print(f"{title}\n\n{report.markdown(table)}\n\n{report.circumstances([arguments.threads])}")
    else:
        report.show(table, title)
    if arguments.output:
        content = {"machine": metadata(), "bars": [verdict.as_dict() for verdict in verdicts]}
        arguments.output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return 0


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: 50,200 was wanted") from None


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="lapgrad_bench.bench.sparse_gp", description=__doc__)
    add_arguments(_parser)
    sys.exit(run(_parser.parse_args()))
