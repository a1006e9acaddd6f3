"""`lapgrad bench grid`: the criterion of an exact Gaussian process over several processes, part by part.

Started by ``mpiexec -n 4 lapgrad bench grid --sizes 8000``, or alone for one process. Process 0 prints
seconds and memory; results of runs with different numbers of processes are compared by their value and
gradient.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed import ProcessGrid, make_grid
from lapgrad.models import GPRegression
from lapgrad_bench.bench.grid_model import H200, format_plan
from lapgrad_bench.bench.measure.memory import measure_peak_bytes
from lapgrad_bench.bench.models.exact_gp import Problem
from lapgrad_bench.common.option_values import parse_number

_ROUTINES = ("potrf", "potri", "potrs", "sum_over_grid")
_WARM_UP = 300
"""Observations of the model whose evaluation loads libraries and starts threads before anything is timed."""


class Evaluation(NamedTuple):
    """Times and results of one evaluation of value and gradient, on this process.

    Attributes:
        seconds: All of it.
        parts: Seconds in each routine of the engine; "kernel" is the rest.
        value: The loss.
        gradient: All gradients, flat.
    """

    seconds: float
    parts: dict[str, float]
    value: float
    gradient: Tensor


class TimedEngine:
    """An engine that adds up the seconds spent in its routines, waiting for other processes included."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.seconds = dict.fromkeys(_ROUTINES, 0.0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._time(name, found) if name in _ROUTINES else found

    def _time(self, name: str, routine: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = routine(*arguments)
            self.seconds[name] += time.perf_counter() - start
            return result

        return call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--sizes", type=parse_number, nargs="+", default=[2000, 4000], help="observations")
    parser.add_argument("--dimensions", type=parse_number, default=8)
    parser.add_argument("--grid", metavar="RxC", help="rows and columns; default: as square as possible")
    parser.add_argument("--block", type=parse_number, help="rows and columns of a block")
    parser.add_argument("--engine", choices=("local", "scalapack", "cusolvermp"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=parse_number, default=3)
    parser.add_argument(
        "--plan",
        type=parse_number,
        nargs="+",
        metavar="P",
        help="estimate time and memory on so many H200, run nothing",
    )
    parser.add_argument(
        "--model", action="store_true", help="time GPRegression without a grid, too (in one process)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    if arguments.plan is not None:
        for n in arguments.sizes:
            print(f"n = {n}, {H200.name}: estimates", "", *format_plan(n, arguments.plan, H200), "", sep="\n")
        return 0
    shape = None if arguments.grid is None else _read_shape(arguments.grid)
    try:
        grid = make_grid(shape, block=arguments.block, device=arguments.device, engine=arguments.engine)
    except _exceptions.OptionError as error:
        raise SystemExit(f"lapgrad bench grid: {error}") from error
    _print(grid, f"{grid}\nthreads of each process: {torch.get_num_threads()}")
    for n in arguments.sizes:
        _measure(grid, "grid", n, arguments)
        if arguments.model and grid.size == 1:
            _measure(None, "model", n, arguments)
    grid.close()
    return 0


def make_model(n: int, dimensions: int, device: str, grid: ProcessGrid | None) -> GPRegression:
    """Return the model that is timed: random points in the unit cube, the same on every process."""
    problem = Problem.generate(n, dimensions, "rbf")
    model = GPRegression(problem.X.to(device), problem.y.to(device), noise_var=0.01, mean="zero")
    model.distributed = grid
    return model


def evaluate(model: GPRegression) -> Evaluation:
    """Return value, gradient and times of one evaluation."""
    grid = model.distributed
    timed = None
    if grid is not None:
        timed = grid.engine if isinstance(grid.engine, TimedEngine) else TimedEngine(grid.engine)
        grid.engine, timed.seconds = timed, dict.fromkeys(_ROUTINES, 0.0)
    model.zero_grad()
    _synchronise(model)
    start = time.perf_counter()
    loss = model.loss()
    loss.backward()
    _synchronise(model)
    seconds = time.perf_counter() - start
    parts = {} if timed is None else dict(timed.seconds)
    if parts:
        parts["kernel"] = seconds - sum(parts.values())
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return Evaluation(seconds, parts, loss.item(), gradient)


def _measure(grid: ProcessGrid | None, name: str, n: int, arguments: argparse.Namespace) -> None:
    options = (arguments.dimensions, arguments.device, grid)
    evaluate(make_model(_WARM_UP, *options))
    model = make_model(n, *options)
    peak = measure_peak_bytes(lambda: evaluate(model), torch.device(arguments.device), called_before=True)
    runs = [evaluate(model) for _ in range(arguments.repeats)]
    best = min(runs, key=lambda found: found.seconds)
    middle = statistics.median(found.seconds for found in runs)
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in best.parts.items())
    _print(
        grid,
        f"{name} n={n}: {middle:.2f} s (least {best.seconds:.2f}), {peak / 2**20:.0f} MB beyond the data\n"
        f"    resident at most {_read_peak_resident() / 2**20:.0f} MB\n"
        f"    loss {best.value:.12g}, |gradient| {float(best.gradient.norm()):.12g}",
    )
    if parts:
        _print(grid, f"    best run: {parts}")


def _read_peak_resident() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _synchronise(model: GPRegression) -> None:
    if model.X.is_cuda:
        torch.cuda.synchronize()


def _print(grid: ProcessGrid | None, line: str) -> None:
    if grid is None or grid.is_first:
        print(line)
        sys.stdout.flush()


def _read_shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdigit() and columns.isdigit()):
        raise SystemExit(f"lapgrad bench grid: --grid must be like 2x2, got {text!r}")
    return int(rows), int(columns)
