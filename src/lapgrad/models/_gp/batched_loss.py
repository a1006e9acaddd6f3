"""The losses of many Gaussian processes with the same data and structure, and other hyper-parameters, at
once.

Hyper-parameters of a batch have a leading dimension: those of a kernel are (s, 1, 1) or (s, 1, d), so that
they broadcast with points (s, n, d) and matrices (s, n, n).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._parameters import ParametrisedModule
from lapgrad.models._training.fitting import get_scales
from lapgrad.models.kernels.base import Kernel


class _Slot(NamedTuple):
    """A parameter of a module, and its shape in a batch without the leading dimension."""

    module: nn.Module
    name: str
    size: int
    shape: tuple[int, ...]


class BatchedLoss:
    """Evaluates the loss of a model for many vectors of its learned parameters.

    Args:
        model: Is copied.
        is_batch: The model is a batch of processes, whose parameters have a leading dimension already.
    """

    def __init__(self, model: Any, *, is_batch: bool = False) -> None:
        self._model, self._is_batch = copy.deepcopy(model), is_batch
        self._slots = _find_slots(self._model, is_batch)
        self._fixed = [
            (module, name, value)
            for module in self._model.modules()
            for name, value in module.named_parameters(recurse=False)
            if is_batch and not value.requires_grad
        ]
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._scales = torch.ones(()) if is_batch else get_scales(model, learned)

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses (s,) and gradients (s, p) at points (s, p), infinity where a loss is not defined.

        Points are in units of the scales of the parameters (``fitting.get_scales``).
        """
        return self.evaluate_items(list(range(len(points))), points)

    def evaluate_items(self, items: list[int], points: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same for some of the processes of a batch, each at its point."""
        values = points.new_full((len(points),), math.inf)
        gradients = torch.zeros_like(points)
        rows = list(range(len(points)))
        while rows:
            try:
                values[rows], found = self._evaluate(
                    [items[row] for row in rows], points[rows] * self._scales
                )
                gradients[rows] = found * self._scales
            except (_exceptions.NotPositiveDefiniteError, _exceptions.NonFiniteError) as error:
                item = error.item
                if not item:  # the error does not say which one it was
                    break
                rows.pop(item[0])
                continue
            break
        values[~(values.isfinite() & gradients.isfinite().all(1))] = math.inf
        return values, gradients

    def get_points(self) -> Tensor:
        """Return the present parameters of a batch of processes as points (b, p), in float64 on the CPU."""
        parts = [slot.module.get_parameter(slot.name).detach().flatten(1) for slot in self._slots]
        return torch.cat(parts, 1).to("cpu", torch.float64)

    def set_points(self, model: ParametrisedModule, points: Tensor) -> None:
        """Set the parameters of a batch of processes to points (b, p)."""
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parts = points.split([slot.size for slot in self._slots], 1)
        with torch.no_grad():
            for parameter, part in zip(learned, parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))

    def _evaluate(self, items: list[int], points: Tensor) -> tuple[Tensor, Tensor]:
        leaves = []
        for module, name, fixed in self._fixed:
            module.register_parameter(name, nn.Parameter(fixed[items], requires_grad=False))
        for slot, part in zip(self._slots, points.split([slot.size for slot in self._slots], 1), strict=True):
            values = part.reshape(len(points), *slot.shape).to(slot.module.get_parameter(slot.name))
            leaves.append(nn.Parameter(values.detach().clone()))
            slot.module.register_parameter(slot.name, leaves[-1])
        with torch.enable_grad():
            if self._is_batch:
                losses = self._model.compute_losses(items)
            else:
                losses = self._model.compute_objectives(torch.Size([len(points)]))
            total = losses.sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True)
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


def _find_slots(model: ParametrisedModule, is_batch: bool) -> list[_Slot]:
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
            shape = tuple(parameter.shape[1:]) if is_batch else _get_batched_shape(module, parameter.shape)
            slots.append(_Slot(module, name, math.prod(shape), shape))
    return slots


def _get_batched_shape(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    wanted = 2 if isinstance(module, Kernel) or shape else 1
    return (1,) * (wanted - len(shape)) + tuple(shape)
