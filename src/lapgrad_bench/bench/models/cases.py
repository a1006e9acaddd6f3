"""The cases of `lapgrad bench models`: criteria of models, by lapgrad and as others write them.

An evaluation computes the value and the gradient for everything that is learned; that of ``deep_gp_step`` is
a whole training step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad_bench.bench.measure.timing import Thunk
from lapgrad_bench.bench.models import deep_gp, exact_gp, sparse_gp
from lapgrad_bench.bench.ops.cases import OPERATORS
from lapgrad_bench.bench.ops.inputs import Shape

Data = tuple[Tensor, Tensor]

# Speed-ups that must be reached, and the smallest sizes that they hold for.
_KALMAN_SPEEDUP, _KALMAN_STEPS = 50.0, 1000
_MVN_SPEEDUP, _MVN_SIZE = 3.5, 2048
_EXACT_SIZE = 1000
_STEP_SPEEDUP = 1.5
_ROUNDING = 1e-8
"""Largest relative difference of two values of the same formula."""

MODELS = ("sparse_gp", "exact_gp", "kalman", "mvn_nll", "deep_gp", "deep_gp_step")
LARGE = "sparse_gp_large"
"""The model name of the case with a million points."""


@dataclass(frozen=True)
class Selection:
    """The cases of a run, in values that can be sent to the measuring process as JSON.

    Attributes:
        models: Names from ``MODELS``.
        data: Name of the data of the sparse process, as `sparse_gp.load_data` takes it.
        folder: Where data files are; None: ``LAPGRAD_DATA``.
        rows: How many rows of the data are used.
        inducing: Numbers of inducing inputs of the sparse process.
        sizes: Numbers of observations of the exact process.
        kernels: Kernels of the exact process, from ``exact_gp.KERNELS``.
        dimensions: Dimensions of the inputs of the exact process.
        large: Whether the sparse process with a million points is measured, too.
        quick: Whether the other models are smaller.
    """

    models: Sequence[str]
    data: str
    folder: str | None
    rows: int
    inducing: Sequence[int]
    sizes: Sequence[int]
    kernels: Sequence[str] = exact_gp.KERNELS
    dimensions: int = 8
    large: bool = False
    quick: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of a case, besides its times and memory, that has to be reached.

    Attributes:
        what: Its name.
        most: The largest value that is good.
        unit: For messages.
        measure: Measures it; takes the seconds that may be spent.
    """

    what: str
    most: float
    unit: str
    measure: Callable[[float], float]


@dataclass(frozen=True)
class PreparedCase:
    """A case that is ready to be timed.

    Attributes:
        thunks: Evaluations in this process, by library.
        arguments: The problem, for libraries in processes of their own; None: none of them has this model.
        tolerances: Largest relative difference of the value from lapgrad's, by library.
        wanted_speedups: Speed-up of lapgrad that must be reached, by library.
        most_megabytes: The most that an evaluation may take.
        wanted_memory_ratio: How many times less memory than other libraries it must take.
        figures: Further figures that must be reached.
        devices_with_bars: Devices on which figures have to be reached.
    """

    thunks: dict[str, Thunk]
    arguments: dict[str, Any] | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    wanted_speedups: Mapping[str, float] = field(default_factory=dict)
    most_megabytes: float | None = None
    wanted_memory_ratio: float | None = None
    figures: Sequence[Figure] = ()
    devices_with_bars: Sequence[str] = ("cpu",)


@dataclass(frozen=True)
class ModelCase:
    """A model at one size.

    Attributes:
        model: One of ``MODELS``, or ``LARGE``.
        case: Its sizes, by name.
        weight: How long it is timed, as a multiple of the seconds per case.
        make: Prepares the case on a device.
        dtype: Of the data.
    """

    model: str
    case: dict[str, int | str]
    weight: float
    make: Callable[[torch.device], PreparedCase]
    dtype: str = "float64"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.case.items())
        return f"{self.model}, {sizes}"


def list_cases(selection: Selection) -> list[ModelCase]:
    """Return the cases of a selection, always in the same order; loads the data of the sparse process."""
    return list(_generate_cases(selection))


def _generate_cases(selection: Selection) -> Iterator[ModelCase]:
    models, quick = selection.models, selection.quick
    if "sparse_gp" in models:
        X, y = sparse_gp.load_data(selection.data, Path(selection.folder) if selection.folder else None)
        data = X[: selection.rows], y[: selection.rows]
        yield from (_make_sparse_case(data, size) for size in selection.inducing)
    if selection.large:
        yield _make_large_case()
    if "exact_gp" in models:
        for n in selection.sizes:
            yield from (_make_exact_case(n, kernel, selection.dimensions) for kernel in selection.kernels)
    if "kalman" in models:
        yield _make_kalman_case(*((200, 8) if quick else (1000, 32)))
    if "mvn_nll" in models:
        yield _make_mvn_case(500 if quick else _MVN_SIZE)
    sizes = deep_gp.QUICK if quick else deep_gp.Sizes()
    if "deep_gp" in models:
        yield _make_deep_case("deep_gp", sizes, _prepare_bound)
    if "deep_gp_step" in models:
        yield _make_deep_case("deep_gp_step", sizes, _prepare_training_step)


def _make_sparse_case(data: Data, inducing: int) -> ModelCase:
    def prepare(device: torch.device) -> PreparedCase:
        problem = sparse_gp.Problem.select(data, inducing).to(device)
        wanted = sparse_gp.WANTED_SPEEDUPS.items()
        return PreparedCase(
            {
                "lapgrad": sparse_gp.make_lapgrad_evaluation(problem),
                "torch": sparse_gp.make_torch_evaluation(problem),
            },
            problem.arguments(),
            sparse_gp.TOLERANCES,
            {name: by_size[inducing] for name, by_size in wanted if inducing in by_size},
            sparse_gp.MOST_MEGABYTES.get(inducing),
            figures=[
                Figure(
                    "float32 against float64, largest relative difference",
                    sparse_gp.MOST_EPS,
                    " eps",
                    lambda seconds: sparse_gp.measure_float32_error(problem),
                )
            ],
        )

    n, d = data[0].shape
    weight = 10.0 if inducing >= 3200 else 3.0 if inducing >= 800 else 1.0
    return ModelCase("sparse_gp", {"U": inducing, "n": n, "d": d}, weight, prepare)


def _make_large_case() -> ModelCase:
    def prepare(device: torch.device) -> PreparedCase:
        problem = sparse_gp.make_large_problem().to(device)
        growth = Figure(
            "time over 4 times that of a quarter of the points",
            sparse_gp.LARGE_GROWTH,
            "",
            sparse_gp.measure_growth,
        )
        return PreparedCase(
            {"lapgrad": sparse_gp.make_lapgrad_evaluation(problem)},
            most_megabytes=sparse_gp.LARGE_MEGABYTES,
            figures=[growth],
        )

    sizes = {"U": sparse_gp.LARGE_INDUCING, "n": sparse_gp.LARGE_N, "d": sparse_gp.LARGE_D}
    return ModelCase(LARGE, {**sizes}, 1.0, prepare)


def _make_exact_case(n: int, kernel: str, d: int) -> ModelCase:
    def prepare(device: torch.device) -> PreparedCase:
        problem = exact_gp.Problem.generate(n, d, kernel).to(device)
        others = ("torch", "gpytorch", "gpflow")
        return PreparedCase(
            {
                "lapgrad": exact_gp.make_lapgrad_evaluation(problem),
                "torch": exact_gp.make_torch_evaluation(problem),
            },
            problem.arguments(),
            dict.fromkeys(others, exact_gp.TOLERANCE),
            dict.fromkeys(others[:2], exact_gp.WANTED_SPEEDUP) if n >= _EXACT_SIZE else {},
            wanted_memory_ratio=exact_gp.WANTED_MEMORY_RATIO,
        )

    return ModelCase("exact_gp", {"n": n, "d": d, "kernel": kernel}, 2.5, prepare)


def _make_kalman_case(steps: int, series: int) -> ModelCase:
    sizes: dict[str, int | str] = {"T": steps, "states": 4, "observations": 2, "series": series}
    wanted = _KALMAN_SPEEDUP if steps >= _KALMAN_STEPS else None
    prepare = _prepare_operator("fused.kalman_nll", Shape(steps, steps, (series,)), wanted)
    return ModelCase("kalman", sizes, 1.0, prepare)


def _make_mvn_case(n: int) -> ModelCase:
    wanted = _MVN_SPEEDUP if n >= _MVN_SIZE else None
    return ModelCase("mvn_nll", {"n": n}, 1.0, _prepare_operator("fused.mvn_nll", Shape(n, n), wanted))


def _make_deep_case(
    model: str, sizes: deep_gp.Sizes, prepare: Callable[[deep_gp.Problem], PreparedCase]
) -> ModelCase:
    case: dict[str, int | str] = {"widths": "-".join(map(str, sizes.widths)), "U": sizes.inducing}
    case |= {"batch": sizes.batch, "d": sizes.pixels}
    return ModelCase(
        model, case, 2.0, lambda device: prepare(deep_gp.Problem.generate(sizes, device)), "float32"
    )


def _prepare_bound(problem: deep_gp.Problem) -> PreparedCase:
    thunks = {
        "lapgrad": deep_gp.make_lapgrad_evaluation(problem),
        "torch": deep_gp.make_torch_evaluation(problem),
    }
    return PreparedCase(thunks, None, {"torch": deep_gp.TOLERANCE})


def _prepare_training_step(problem: deep_gp.Problem) -> PreparedCase:
    thunks, missing = deep_gp.make_training_steps(problem)
    if missing is not None:
        print(f"deep_gp_step: no torch-graph: {missing}", file=sys.stderr)
    wanted = dict.fromkeys(("torch", "torch-graph"), _STEP_SPEEDUP)
    return PreparedCase(thunks, None, {"torch": deep_gp.TOLERANCE}, wanted, devices_with_bars=("cuda",))


def _prepare_operator(
    name: str, shape: Shape, wanted_speedup: float | None
) -> Callable[[torch.device], PreparedCase]:
    """Return a function that prepares an operator's summed results as a criterion, and those of torch."""

    def prepare(device: torch.device) -> PreparedCase:
        operator = OPERATORS[name]
        generator = torch.Generator(device).manual_seed(0)
        inputs = [x.requires_grad_() for x in operator.inputs(shape, torch.float64, generator)]

        def make_evaluation(function: Callable[..., Any]) -> Thunk:
            def evaluate() -> tuple[Tensor, ...]:
                value = function(*inputs).sum()
                return value.detach(), *torch.autograd.grad(value, inputs)

            return evaluate

        thunks = {"lapgrad": make_evaluation(operator.ours), "torch": make_evaluation(operator.peer)}
        wanted = {} if wanted_speedup is None else {"torch": wanted_speedup}
        return PreparedCase(thunks, None, {"torch": _ROUNDING}, wanted)

    return prepare
