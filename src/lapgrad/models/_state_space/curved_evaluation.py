"""The loss of a state space model with cycles or autoregressions, and its gradient, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lapgrad.fused.kalman_nll import prepare_gradient
from lapgrad.models._state_space.likelihood import (
    LinearMap,
    SeriesEvaluation,
    join_parameters,
    read_linear_map,
    set_parameters,
)
from lapgrad.models._state_space.starts import Array, LearnedNumber
from lapgrad.models.components.base import Component, Sum

Indices = npt.NDArray[np.intp]

#: An evaluation must also agree with its model at parameters that are larger by this much.
_OTHER_POINT = 0.3

#: Positions of A, Q, R and P among the operands.
_LEARNED = (1, 3, 4, 6)


class _CurvedPart(NamedTuple):
    """A component with hyper-parameters besides its variance.

    Attributes:
        component: Computes its matrices.
        raw: (k,), its raw numbers besides the variance; learned ones are not kept up to date.
        coordinates: Where they are among the learned numbers; -1: not learned.
        variance: The coordinate of its variance; -1: not learned.
        log_variance: What its logarithm is if it is not learned.
        A, P: Where its numbers are among all numbers of A, Q, R, P.
        counts: (n n,), 1 where its P counts, 0 where the prior is flat.
    """

    component: Component
    raw: Array
    coordinates: list[int]
    variance: int
    log_variance: float
    A: Indices
    P: Indices
    counts: Array


class CurvedEvaluation(SeriesEvaluation):
    """The loss and its gradient for a model whose parts are linear in variances, or offer ``curve``.

    With the weights w = exp(k raw) of variances, and A, P of the curved parts from ``CurvedBlock``,

        [A Q R P] = base + wᵀ E + the blocks of curved parts

    Use ``make_curved_evaluation``, which checks that a model is of this kind.
    """

    def __init__(
        self,
        general: SeriesEvaluation,
        flat: Sequence[Tensor],
        linear: LinearMap,
        coordinates: Indices,
        parts: Sequence[_CurvedPart],
    ) -> None:
        super().__init__(general.make_matrices, general.y, general.diffuse, general.parameters)
        numbers, gradient = torch.empty_like(linear.base), torch.empty_like(linear.base)
        operands = [operand.detach() for operand in flat]
        results: list[Tensor | None] = [None] * len(flat)
        sizes = [flat[i].numel() for i in _LEARNED]
        for i, own, found in zip(_LEARNED, numbers.split(sizes), gradient.split(sizes), strict=True):
            operands[i], results[i] = own.view(flat[i].shape), found.view(flat[i].shape)
        self._evaluate = prepare_gradient(operands, results)
        self._numbers, self._gradient = numbers.numpy(), gradient.numpy()
        self._powers, self._base, self._E = (part.numpy() for part in linear)
        self._coordinates, self._parts = coordinates, parts

    def set_numbers(self, x: Array) -> list[tuple[Array, Array, Array]]:
        """Set the operands at parameters x; return the derivatives of the curved parts."""
        self._weights = np.exp(self._powers * x[self._coordinates])
        np.add(self._base, self._weights @ self._E, out=self._numbers)
        derivatives = []
        for part in self._parts:
            for i, coordinate in enumerate(part.coordinates):
                if coordinate >= 0:
                    part.raw[i] = x[coordinate]
            block = part.component.curve(part.raw)
            assert block is not None, "make_curved_evaluation has asked before"
            variance = float(np.exp(x[part.variance] if part.variance >= 0 else part.log_variance))
            prior = variance * part.counts * block.prior.ravel()
            self._numbers[part.A] = block.transition.ravel()
            self._numbers[part.P] += prior
            k = len(part.raw)
            derivatives.append(
                (
                    block.transition_slopes.reshape(k, -1),
                    variance * part.counts * block.prior_slopes.reshape(k, -1),
                    prior,
                )
            )
        return derivatives

    def reproduces_at(self, x: Array) -> bool:
        """Set the model to parameters x; return whether the numbers here are those of its matrices."""
        set_parameters(self.parameters, x)
        self.set_numbers(x)
        flat = self.prepare_operands()
        wanted = torch.cat([flat[i].flatten() for i in _LEARNED]).numpy()
        return bool(np.abs(self._numbers - wanted).max() <= 1e-9 * np.abs(wanted).max())

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Return the loss and its gradient (k,) at parameters x (k,)."""
        derivatives = self.set_numbers(x)
        loss = self.sum_values(self._evaluate()) - self._constant
        gradient = np.zeros(len(x))
        gradient[self._coordinates] = self._powers * self._weights * (self._E @ self._gradient)
        for part, (of_A, of_P, prior) in zip(self._parts, derivatives, strict=True):
            gA, gP = self._gradient[part.A], self._gradient[part.P]
            found = of_A @ gA + of_P @ gP
            for i, coordinate in enumerate(part.coordinates):
                if coordinate >= 0:
                    gradient[coordinate] += found[i]
            if part.variance >= 0:
                gradient[part.variance] += prior @ gP
        return loss, gradient


@torch.no_grad()
def make_curved_evaluation(
    general: SeriesEvaluation, component: Component, numbers: Sequence[LearnedNumber]
) -> CurvedEvaluation | None:
    """Return an evaluation without autograd; None: the model has parts that it does not cover.

    Args:
        general: The evaluation by autograd.
        component: The component of the model.
        numbers: What the learned numbers are.
    """
    flat = general.prepare_operands()
    n, is_constant = flat[1].shape[-1], all(flat[i].shape[:2] == (1, 1) for i in _LEARNED[:3])
    if general.y.dtype != torch.float64 or not is_constant or len(flat[6]) != 1:
        return None
    places, count = {}, 0
    for parameter in general.parameters:
        places[id(parameter)] = range(count, count + parameter.numel())
        count += parameter.numel()
    parts = component.components if isinstance(component, Sum) else [component]
    offsets = np.cumsum([0, *(part.states for part in parts)])
    curved = [
        _describe_part(general, part, places, int(first), n, flat[4].numel())
        for part, first in zip(parts, offsets, strict=False)
        if part.curved
    ]
    covered = {coordinate for part in curved for coordinate in part.coordinates}
    linear = [i for i, number in enumerate(numbers) if number.is_variance]
    if len(linear) + len(covered - {-1}) != len(numbers):
        return None
    found = read_linear_map(general, flat, linear, [numbers[i].power for i in linear], _LEARNED)
    if found is None:
        return None
    for part in curved:
        found.base[part.A], found.E[:, part.A] = 0.0, 0.0
        # The prior now has only the variances of states with a flat prior.
        kept = torch.from_numpy(1.0 - part.counts)
        found.base[part.P] *= kept
        found.E[:, part.P] *= kept
    made = CurvedEvaluation(general, flat, found, np.array(linear, dtype=np.intp), curved)
    present = join_parameters(general.parameters)
    is_same = all(made.reproduces_at(present + change) for change in (_OTHER_POINT, 0.0))
    return made if is_same else None


def _describe_part(
    general: SeriesEvaluation,
    part: Component,
    places: dict[int, range],
    first: int,
    n: int,
    size_of_R: int,
) -> _CurvedPart:
    raws = [part.get_parameter(f"raw_{name}") for name in part.curved]
    coordinates = [i for raw in raws for i in (places[id(raw)] if id(raw) in places else [-1] * raw.numel())]
    variance = part.get_parameter("raw_variance")
    own = np.arange(first, first + part.states)
    block = (own[:, None] * n + own).ravel()
    proper = np.array([i not in general.diffuse.positions for i in own], dtype=np.float64)
    return _CurvedPart(
        part,
        torch.cat([raw.flatten() for raw in raws]).double().numpy().copy(),
        coordinates,
        places[id(variance)][0] if id(variance) in places else -1,
        float(variance),
        block,
        2 * n * n + size_of_R + block,
        np.outer(proper, proper).ravel(),
    )
