"""The training task of a deep Gaussian process without inputs: its bound, and natural gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._deep import bound as _bound
from lapgrad.models._deep.latent_layer import DeepLayer
from lapgrad.models._training.minibatches import Minibatch, TrainingTask
from lapgrad.models._training.shares import BatchPart, DataShare

#: Default length of the first natural gradient steps.
_NATURAL = 0.1


class DeepTask(TrainingTask):
    """Minimises minus the bound per datum by Adam, and moves q(u) along natural gradients.

    Args:
        layers: The layers of the model, the lowest one first.
        Y: (n, D), the data of this process.
        samples: Samples of latent variables per datum.
        annealing: Steps in which the weight of the terms of latent variables rises to 1.
        natural: Length of the first steps along the natural gradient. If it is 0, or any parameter of q(u)
            does not require gradients, q(u) is left to Adam.
        share: Which of the rows of all processes are here; None: all.
    """

    def __init__(
        self,
        layers: Sequence[DeepLayer],
        Y: Tensor,
        samples: int,
        annealing: int,
        natural: float,
        share: DataShare | None = None,
    ) -> None:
        self.total = len(Y) if share is None else share.total
        self.group = None if share is None else share.group
        self.layers, self.Y, self.samples = layers, Y, samples
        self.annealing, self.natural = annealing, natural
        of_q = [value for layer in layers for value in layer.functions.list_q_parameters()]
        moves = bool(natural) and all(value.requires_grad for value in of_q)
        self.moved = of_q if moves else []
        # Numbers that differ between steps are in tensors, so that a CUDA graph can read them.
        self.length = torch.zeros((), dtype=torch.float64, device=Y.device)
        self.weight: Tensor | float = torch.ones_like(self.length) if annealing else 1.0
        self.seen: tuple[Tensor, list[Tensor], BatchPart] | None = None

    def select_for_adam(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that natural gradients do not move."""
        moved = {id(value) for value in self.moved}
        return [value for value in parameters if id(value) not in moved]

    def make_normals(self, count: int) -> list[Tensor]:
        """Return tensors (samples, count, w) for the latent variables of each layer."""
        widths = [layer.functions.inducing.shape[1] for layer in self.layers]
        return [self.Y.new_empty(self.samples, count, width) for width in widths]

    def prepare_step(self, step: int, rate: float) -> None:
        """Set the length of the natural gradient step, and the weight of latent variables."""
        self.length.fill_(self.natural * rate)
        if isinstance(self.weight, Tensor):
            self.weight.fill_(min(1.0, (step + 1) / self.annealing))

    def loss(self, minibatch: Minibatch) -> Tensor:
        """Return minus the bound of all data per datum, estimated from the minibatch."""
        some, part = self.Y[minibatch.rows], minibatch.part
        found, latent = _bound.estimate_bound(
            self.layers, some, self.total, minibatch.normals, self.weight, part=part
        )
        self.seen = some, latent, part
        return -found / self.total

    def finish_step(self) -> None:
        """Move q(u), with the latent variables of the minibatch."""
        assert self.seen is not None
        (some, latent, part), self.seen = self.seen, None  # or a CUDA graph would keep their memory
        if self.moved:
            _bound.move_functions(
                self.layers, some, latent, self.total, self.length, self.weight, part, self.group
            )


def choose_natural_length(who: str, layers: Sequence[DeepLayer], given: float | None) -> float:
    """Return the option ``natural`` of a fit, or its default for these layers; raise if it is invalid."""
    shared = all(layer.functions.covariance == "shared" for layer in layers)
    if given is None:
        return _NATURAL if shared else 0.0
    if not 0.0 <= given < 1.0 or (given and not shared):
        raise _exceptions.OptionError(
            f"{who}: natural must be in [0, 1), and 0 for separate covariances, got {given}."
        )
    return given
