"""The bound of a deep Gaussian process and its gradient: what a training step computes, against torch.linalg.

Both run the same code of the model, recognition networks and kernels included; the factorisations, triangular
solves and products of its layers are lapgrad's, or those of torch with torch's own gradients. On a GPU
neither waits for the device within a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._waiting import without_waiting
from lapgrad.bench.timing import Thunk
from lapgrad.models import DeepGP
from lapgrad.models._layer_algebra import torch_linalg


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
        with torch_linalg():
            found: tuple[Tensor, ...] = evaluate()
            return found

    return by_torch
