"""Deep Gaussian processes: the bound with its gradient, and whole training steps, against torch.linalg.

Both sides run the same code of the model, with its recognition networks and kernels. Only the
factorisations, triangular solves and products of the layers differ: they are lapgrad's, or torch's with
torch's own gradients. On a GPU neither side waits for the device within a step.

A training step is one of ``DeepGP.fit``: the bound, its gradient, Adam, and natural gradients for q(u). On a
GPU it is replayed as a CUDA graph. The torch side is timed twice there: without a graph, as a user of torch
would write it, and with one.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.models import DeepGP
from lapgrad.models._deep.latent_layer import DeepLayer
from lapgrad.models._deep.learning import DeepTask, choose_natural_length
from lapgrad.models._training.cuda_graph import REHEARSALS
from lapgrad.models._training.minibatches import TrainingRun
from lapgrad.models._training.plan import TrainingPlan
from lapgrad_bench.bench.measure.timing import Thunk
from lapgrad_bench.bench.models.torch_layers import replace_operators_by_torch


class Sizes(NamedTuple):
    """Sizes of the model and of its minibatch."""

    widths: tuple[int, ...] = (5, 20, 50)
    batch: int = 1000
    inducing: int = 100
    pixels: int = 784
    hidden: tuple[int, ...] = (500, 300)


QUICK = Sizes((2, 5), 100, 20, 50, (30,))
TOLERANCE = 1e-4
"""Largest relative difference of the two values, in float32 with kernel matrices close to singular."""
_ROWS = 2000
_TOTAL = 60_000
_RATE = 1e-5
"""Learning rate of Adam, so small that thousands of steps leave the model near its start."""


@dataclass(frozen=True)
class Problem:
    """A model before training, and a minibatch with its random numbers.

    Attributes:
        model: In float32.
        Y: The minibatch, (b, pixels).
        noise: Standard normal numbers of the latent variables, (1, b, w) per layer.
    """

    model: DeepGP
    Y: Tensor
    noise: list[Tensor]

    @classmethod
    def generate(cls, sizes: Sizes, device: torch.device) -> Problem:
        """Return a problem of made-up images: sigmoids of sums of 12 random patterns, with noise."""
        widths, batch, inducing, pixels, hidden = sizes
        source = torch.Generator().manual_seed(0)
        patterns = torch.randn(12, pixels, generator=source)
        images = torch.sigmoid(torch.randn(_ROWS, 12, generator=source) @ patterns / 2.0)
        images = (images + 0.05 * torch.randn(_ROWS, pixels, generator=source)).to(device)
        model = DeepGP(images, widths, inducing=inducing, hidden=hidden, generator=0)
        noise = [torch.randn(1, batch, w, generator=source).to(device) for w in reversed(widths)]
        return cls(model, images[:batch], noise)


def make_lapgrad_evaluation(problem: Problem) -> Thunk:
    """Return a function that evaluates the loss of ``DeepGP.fit`` and its gradient."""
    parameters = list(problem.model.parameters())

    def evaluate() -> tuple[Tensor, ...]:
        with without_waiting():
            value = -problem.model.bound(problem.Y, total=_TOTAL, noise=problem.noise) / _TOTAL
            return value.detach(), *torch.autograd.grad(value, parameters)

    return evaluate


def make_torch_evaluation(problem: Problem) -> Thunk:
    """Return the same evaluation with torch.linalg in the layers."""
    evaluate = make_lapgrad_evaluation(problem)

    def evaluate_with_torch() -> tuple[Tensor, ...]:
        with replace_operators_by_torch():
            found: tuple[Tensor, ...] = evaluate()
            return found

    return evaluate_with_torch


class TrainingStep:
    """A function that makes one step of ``DeepGP.fit`` on a copy of the model per call.

    Args:
        problem: The model, and a minibatch.
        data: All data, (n, pixels).
        uses_torch: Whether the layers compute with torch.linalg.
        graph: As in ``fit``.
    """

    def __init__(self, problem: Problem, data: Tensor, *, uses_torch: bool, graph: bool | None) -> None:
        model, who = copy.deepcopy(problem.model), "bench"
        layers = [layer for layer in model.layers if isinstance(layer, DeepLayer)]
        task = DeepTask(layers, data, 1, 0, choose_natural_length(who, layers, None))
        learned = task.select_for_adam(list(model.parameters()))
        plan = TrainingPlan(len(problem.Y), None, None, _RATE, 1.0, 1)
        source = torch.Generator(data.device).manual_seed(0)
        self._training = TrainingRun(who, model, len(data), plan, task, source, None, learned, graph)
        self._uses_torch = uses_torch

    def __call__(self) -> tuple[Tensor, ...]:
        """Make a step; return the sum of all losses so far, and the parameters."""
        with (
            replace_operators_by_torch() if self._uses_torch else contextlib.nullcontext(),
            without_waiting(),
        ):
            self._training.take_step()
        return self._training.total, *self._training.moved

    def close(self) -> None:
        """Free the CUDA graphs."""
        self._training.close()


def make_training_steps(problem: Problem) -> tuple[dict[str, Thunk], str | None]:
    """Return steps by library (lapgrad, torch, on a GPU also torch-graph), and why torch-graph is missing."""
    data = problem.Y.repeat(max(1, _TOTAL // len(problem.Y)), 1)
    steps: dict[str, Thunk] = {
        "lapgrad": TrainingStep(problem, data, uses_torch=False, graph=None),
        "torch": TrainingStep(problem, data, uses_torch=True, graph=False),
    }
    if not data.is_cuda:
        return steps, None
    rehearsal = TrainingStep(problem, data, uses_torch=True, graph=True)
    try:
        for _ in range(REHEARSALS + 1):
            rehearsal()
    except _exceptions.OptionError as error:
        return steps, str(error)
    finally:
        rehearsal.close()
    steps["torch-graph"] = TrainingStep(problem, data, uses_torch=True, graph=True)
    return steps, None
