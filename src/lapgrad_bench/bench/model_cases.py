"""Criteria of models and how others write them: what `lapgrad bench models` times.

Each evaluation is the value and the gradient for everything that is learned; of ``deep_gp_step`` a whole
training step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lapgrad_bench.bench import deep_gp, exact_gp, sparse_gp
from lapgrad_bench.bench.cases import OPERATORS
from lapgrad_bench.bench.inputs import Shape
from lapgrad_bench.bench.timing import Thunk

Data = tuple[Tensor, Tensor]

_KALMAN_FASTER, _KALMAN_STEPS = 50.0, 1000
_MVN_FASTER, _MVN_SIZE = 3.5, 2048
_EXACT_SIZE = 1000
_STEP_FASTER = 1.5
"""Speed-ups that are to be reached, and sizes from which on they are."""
_ROUNDING = 1e-8
"""By how much values of the same formula may be apart, relative."""

MODELS = ("sparse_gp", "exact_gp", "kalman", "mvn_nll", "deep_gp", "deep_gp_step")


@dataclass(frozen=True)
class Contest:
    """A case that is ready to be timed.

    Attributes:
        thunks: In this process, by library.
        arguments: For libraries in processes of their own; None: none has this model.
        different: How far values may be apart, relative, by library.
        faster: The speed-up that is to be reached, by library.
        megabytes: What an evaluation may take.
        smaller: How many times less than others.
        held_on: Devices on which figures are to be reached.
    """

    thunks: dict[str, Thunk]
    arguments: dict[str, Any] | None = None
    different: Mapping[str, float] = field(default_factory=dict)
    faster: Mapping[str, float] = field(default_factory=dict)
    megabytes: float | None = None
    smaller: float | None = None
    held_on: Sequence[str] = ("cpu",)


@dataclass(frozen=True)
class ModelCase:
    """A model at one size.

    Attributes:
        model: One of ``MODELS``.
        case: Its sizes, by name.
        weight: How long it is timed: a factor of the seconds that are given.
        make: Makes what is timed, on a device.
        dtype: Of the data.
    """

    model: str
    case: dict[str, int | str]
    weight: float
    make: Callable[[torch.device], Contest]
    dtype: str = "float64"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.case.items())
        return f"{self.model}, {sizes}"


def cases(
    models: Sequence[str], data: Data, inducing: Sequence[int], sizes: Sequence[int], quick: bool
) -> Iterator[ModelCase]:
    """All cases of the models that are asked for.

    Args:
        models: Names.
        data: Of the sparse process.
        inducing: Numbers of inducing inputs.
        sizes: Observations of the exact process.
        quick: Fewer and smaller ones.
    """
    if "sparse_gp" in models:
        yield from (_sparse(data, size) for size in inducing)
    if "exact_gp" in models:
        kernels = exact_gp.KERNELS[:1] if quick else exact_gp.KERNELS
        yield from (_exact(n, kernel) for n in sizes for kernel in kernels)
    if "kalman" in models:
        yield _kalman(*((200, 8) if quick else (1000, 32)))
    if "mvn_nll" in models:
        yield from (_mvn(n) for n in ((500,) if quick else (_MVN_SIZE,)))
    if "deep_gp" in models:
        yield _deep("deep_gp", deep_gp.QUICK if quick else deep_gp.Sizes(), _bound_and_gradient)
    if "deep_gp_step" in models:
        yield _deep("deep_gp_step", deep_gp.QUICK if quick else deep_gp.Sizes(), _training_step)


def _sparse(data: Data, inducing: int) -> ModelCase:
    def make(device: torch.device) -> Contest:
        problem = sparse_gp.Problem.of(data, inducing).to(device)
        bounds = {
            name: by_size[inducing] for name, by_size in sparse_gp.FASTER.items() if inducing in by_size
        }
        return Contest(
            {"lapgrad": sparse_gp.ours(problem), "torch": sparse_gp.written_out(problem)},
            problem.arguments(),
            sparse_gp.DIFFERENT,
            bounds,
            sparse_gp.MEMORY.get(inducing),
        )

    n, d = data[0].shape
    weight = 10.0 if inducing >= 3200 else 3.0 if inducing >= 800 else 1.0
    return ModelCase("sparse_gp", {"U": inducing, "n": n, "d": d}, weight, make)


def _exact(n: int, kernel: str, d: int = 8) -> ModelCase:
    def make(device: torch.device) -> Contest:
        problem = exact_gp.Problem.of(n, d, kernel).to(device)
        others = ("torch", "gpytorch", "gpflow")
        return Contest(
            {"lapgrad": exact_gp.ours(problem), "torch": exact_gp.written_out(problem)},
            problem.arguments(),
            dict.fromkeys(others, exact_gp.DIFFERENT),
            dict.fromkeys(others[:2], exact_gp.FASTER) if n >= _EXACT_SIZE else {},
            smaller=exact_gp.SMALLER,
        )

    return ModelCase("exact_gp", {"n": n, "d": d, "kernel": kernel}, 2.5, make)


def _kalman(steps: int, series: int) -> ModelCase:
    sizes: dict[str, int | str] = {"T": steps, "states": 4, "observations": 2, "series": series}
    faster = _KALMAN_FASTER if steps >= _KALMAN_STEPS else None
    make = _of_operator("fused.kalman_nll", Shape(steps, steps, (series,)), faster)
    return ModelCase("kalman", sizes, 1.0, make)


def _mvn(n: int) -> ModelCase:
    faster = _MVN_FASTER if n >= _MVN_SIZE else None
    return ModelCase("mvn_nll", {"n": n}, 1.0, _of_operator("fused.mvn_nll", Shape(n, n), faster))


def _deep(model: str, sizes: deep_gp.Sizes, contest: Callable[[deep_gp.Problem], Contest]) -> ModelCase:
    case: dict[str, int | str] = {"widths": "-".join(map(str, sizes.widths)), "U": sizes.inducing}
    case |= {"batch": sizes.batch, "d": sizes.pixels}
    return ModelCase(model, case, 2.0, lambda device: contest(deep_gp.Problem.of(sizes, device)), "float32")


def _bound_and_gradient(problem: deep_gp.Problem) -> Contest:
    thunks = {"lapgrad": deep_gp.ours(problem), "torch": deep_gp.with_torch(problem)}
    return Contest(thunks, None, {"torch": deep_gp.DIFFERENT})


def _training_step(problem: deep_gp.Problem) -> Contest:
    thunks, missing = deep_gp.training_steps(problem)
    if missing is not None:
        print(f"deep_gp_step: no torch-graph: {missing}", file=sys.stderr)
    faster = dict.fromkeys(("torch", "torch-graph"), _STEP_FASTER)
    return Contest(thunks, None, {"torch": deep_gp.DIFFERENT}, faster, held_on=("cuda",))


def _of_operator(name: str, shape: Shape, faster: float | None) -> Callable[[torch.device], Contest]:
    """The sum of what an operator returns, and its gradient; torch as in `lapgrad bench ops`."""

    def make(device: torch.device) -> Contest:
        operator = OPERATORS[name]
        generator = torch.Generator(device).manual_seed(0)
        inputs = [x.requires_grad_() for x in operator.inputs(shape, torch.float64, generator)]

        def evaluation(function: Callable[..., Any]) -> Thunk:
            def evaluate() -> tuple[Tensor, ...]:
                value = function(*inputs).sum()
                return value.detach(), *torch.autograd.grad(value, inputs)

            return evaluate

        thunks = {"lapgrad": evaluation(operator.ours), "torch": evaluation(operator.peer)}
        return Contest(thunks, None, {"torch": _ROUNDING}, {} if faster is None else {"torch": faster})

    return make
