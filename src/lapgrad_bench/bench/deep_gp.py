"""Deep Gaussian processes: the bound and its gradient, and whole training steps, against torch.linalg.

Both run the same code of the model, recognition networks and kernels included; the factorisations, triangular
solves and products of its layers are lapgrad's, or those of torch with torch's own gradients. On a GPU
neither waits for the device within a step. A training step is one of ``DeepGP.fit``: the bound, its gradient,
Adam, and the natural gradients of q(u). On a GPU that is a CUDA graph, and the same code on torch.linalg is
timed both ways: launch by launch, as who writes it in torch would have it, and as a graph.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.models import DeepGP
from lapgrad.models._deep.latent_layer import DeepLayer
from lapgrad.models._deep.learning import DeepTask, choose_natural_length
from lapgrad.models._training.cuda_graph import REHEARSALS
from lapgrad.models._training.minibatches import TrainingRun
from lapgrad.models._training.plan import TrainingPlan
from lapgrad_bench.bench.timing import Thunk
from lapgrad_bench.bench.torch_layers import replace_operators_by_torch


class Sizes(NamedTuple):
    """Of the model and its minibatch."""

    widths: tuple[int, ...] = (5, 20, 50)
    batch: int = 1000
    inducing: int = 100
    pixels: int = 784
    hidden: tuple[int, ...] = (500, 300)


QUICK = Sizes((2, 5), 100, 20, 50, (30,))
DIFFERENT = 1e-4
"""By how much the two may be apart, relative: float32, and kernel matrices close to singular."""
_ROWS = 2000
_TOTAL = 60_000
_RATE = 1e-5
"""Of Adam: thousands of steps on few data stay where figures are as at the start."""


@dataclass(frozen=True)
class Problem:
    """A model at its start, and a minibatch with its noise.

    Attributes:
        model: In float32.
        Y: (b, pixels).
        noise: For the latent variables, (1, b, w) per layer.
    """

    model: DeepGP
    Y: Tensor
    noise: list[Tensor]

    @classmethod
    def of(cls, sizes: Sizes, device: torch.device) -> Problem:
        """Made-up images: squashed combinations of few patterns, with noise."""
        widths, batch, inducing, pixels, hidden = sizes
        source = torch.Generator().manual_seed(0)
        patterns = torch.randn(12, pixels, generator=source)
        images = torch.sigmoid(torch.randn(_ROWS, 12, generator=source) @ patterns / 2.0)
        images = (images + 0.05 * torch.randn(_ROWS, pixels, generator=source)).to(device)
        model = DeepGP(images, widths, inducing=inducing, hidden=hidden, generator=0)
        noise = [torch.randn(1, batch, w, generator=source).to(device) for w in reversed(widths)]
        return cls(model, images[:batch], noise)


def ours(problem: Problem) -> Thunk:
    """lapgrad: as ``DeepGP.fit`` does it."""
    parameters = list(problem.model.parameters())

    def evaluate() -> tuple[Tensor, ...]:
        with without_waiting():
            value = -problem.model.bound(problem.Y, total=_TOTAL, noise=problem.noise) / _TOTAL
            return value.detach(), *torch.autograd.grad(value, parameters)

    return evaluate


def with_torch(problem: Problem) -> Thunk:
    """The same on torch.linalg."""
    evaluate = ours(problem)

    def by_torch() -> tuple[Tensor, ...]:
        with replace_operators_by_torch():
            found: tuple[Tensor, ...] = evaluate()
            return found

    return by_torch


class TrainingStep:
    """Steps of ``DeepGP.fit`` on a copy of the model, one in each call, whose first result is the loss.

    Args:
        problem: The model, and a minibatch.
        data: (n, pixels), all data.
        by_torch: With torch.linalg.
        graph: As of ``fit``.
    """

    def __init__(self, problem: Problem, data: Tensor, *, by_torch: bool, graph: bool | None) -> None:
        model, who = copy.deepcopy(problem.model), "bench"
        layers = [layer for layer in model.layers if isinstance(layer, DeepLayer)]
        task = DeepTask(layers, data, 1, 0, choose_natural_length(who, layers, None))
        learned = task.select_for_adam(list(model.parameters()))
        plan = TrainingPlan(len(problem.Y), None, None, _RATE, 1.0, 1)
        source = torch.Generator(data.device).manual_seed(0)
        self._training = TrainingRun(who, model, len(data), plan, task, source, None, learned, graph)
        self._by_torch = by_torch

    def __call__(self) -> tuple[Tensor, ...]:
        """A step; the sum of all losses so far, and where the parameters are now."""
        with replace_operators_by_torch() if self._by_torch else contextlib.nullcontext(), without_waiting():
            self._training.take_step()
        return self._training.total, *self._training.moved

    def close(self) -> None:
        """Give graphs back."""
        self._training.close()


def training_steps(problem: Problem) -> tuple[dict[str, Thunk], str | None]:
    """Steps by library: lapgrad, torch, and on a GPU torch-graph; why the last one is missing, if it is."""
    data = problem.Y.repeat(max(1, _TOTAL // len(problem.Y)), 1)
    steps: dict[str, Thunk] = {
        "lapgrad": TrainingStep(problem, data, by_torch=False, graph=None),
        "torch": TrainingStep(problem, data, by_torch=True, graph=False),
    }
    if not data.is_cuda:
        return steps, None
    rehearsal = TrainingStep(problem, data, by_torch=True, graph=True)
    try:
        for _ in range(REHEARSALS + 1):
            rehearsal()
    except _errors.OptionError as error:
        return steps, str(error)
    finally:
        rehearsal.close()
    steps["torch-graph"] = TrainingStep(problem, data, by_torch=True, graph=True)
    return steps, None
