"""The losses of many Gaussian processes with the same data and structure, and other hyper-parameters, at
once.

Hyper-parameters of a batch have a leading dimension: those of a kernel are (s, 1, 1) or (s, 1, d), so that
they broadcast with points (s, n, d) and matrices (s, n, n).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models._parameters import ParametrisedModule
from lapgrad.models._training.fitting import get_scales
from lapgrad.models.kernels.base import Kernel


class BatchableModel(Protocol):
    """A model whose loss can be computed for a batch of hyper-parameters."""

    def compute_objectives(self, batch: torch.Size) -> Tensor:
        """Return what a fit minimises, (*batch), if hyper-parameters have these leading dimensions."""


class _Slot(NamedTuple):
    """A parameter of a module, and its shape in a batch without the leading dimension."""

    module: nn.Module
    name: str
    count: int
    shape: tuple[int, ...]


class BatchedLoss:
    """Evaluates the loss of a model for many vectors of its learned parameters.

    Args:
        model: Is copied.
    """

    def __init__(self, model: Any) -> None:
        self._model = copy.deepcopy(model)
        self._slots = _find_slots(self._model)
        self._scales = get_scales(model, [p for p in model.parameters() if p.requires_grad])

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses (s,) and gradients (s, p) at points (s, p), infinity where a loss is not defined.

        Points are in units of the scales of the parameters (``fitting.get_scales``).
        """
        values = points.new_full((len(points),), math.inf)
        gradients = torch.zeros_like(points)
        rows = list(range(len(points)))
        while rows:
            try:
                values[rows], found = self._evaluate(points[rows] * self._scales)
                gradients[rows] = found * self._scales
            except (_errors.NotPositiveDefiniteError, _errors.NonFiniteError) as error:
                item = error.item
                if not item:  # the error does not say which one it was
                    break
                rows.pop(item[0])
                continue
            break
        values[~(values.isfinite() & gradients.isfinite().all(1))] = math.inf
        return values, gradients

    def _evaluate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        leaves = []
        for slot, part in zip(
            self._slots, points.split([slot.count for slot in self._slots], 1), strict=True
        ):
            old = slot.module._parameters[slot.name]
            assert old is not None
            values = part.reshape(len(points), *slot.shape).to(old)
            leaves.append(nn.Parameter(values.detach().clone()))
            slot.module._parameters[slot.name] = leaves[-1]
        with torch.enable_grad():
            losses = self._model.compute_objectives(torch.Size([len(points)]))
        found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        flat = [
            (torch.zeros_like(leaf) if gradient is None else gradient).reshape(len(points), -1).to(points)
            for leaf, gradient in zip(leaves, found, strict=True)
        ]
        return losses.detach().to(points), torch.cat(flat, 1)


def is_batchable(model: ParametrisedModule) -> bool:
    """Return whether all learned parameters are hyper-parameters of classes whose formulas allow a batch.

    Those of lapgrad do. Networks and kernels of users need not.
    """
    own = {
        id(module.get_parameter(descriptor.raw_name))
        for _, module, descriptor in model.iterate_hyperparameters()
    }
    return all(id(parameter) in own for parameter in model.parameters() if parameter.requires_grad) and all(
        type(module).__module__.startswith(("lapgrad.", "torch.nn.modules.container"))
        for module in model.modules()
    )


def _find_slots(model: ParametrisedModule) -> list[_Slot]:
    """Return the learned parameters in the order of ``model.parameters()``."""
    places = {
        id(value): (module, name)
        for module in model.modules()
        for name, value in module.named_parameters(recurse=False)
    }
    slots = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            module, name = places[id(parameter)]
            slots.append(_Slot(module, name, parameter.numel(), _get_batched_shape(module, parameter.shape)))
    return slots


def _get_batched_shape(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    wanted = 2 if isinstance(module, Kernel) or shape else 1
    return (1,) * (wanted - len(shape)) + tuple(shape)
