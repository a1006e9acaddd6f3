"""The log likelihood of series under a state space model with diffuse states, and its gradient for fits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lapgrad.fused import _series
from lapgrad.fused.kalman_nll import kalman_nll, prepare_gradient
from lapgrad.models._state_space import diffuse as _diffuse
from lapgrad.models._state_space import time_series as _time_series
from lapgrad.models._state_space.diffuse import DiffuseStates
from lapgrad.models._state_space.matrices import Matrices
from lapgrad.models._state_space.starts import Array, LearnedNumber
from lapgrad.models.components.base import Component

#: The most numbers of a linear map from variances to matrices; autograd computes larger ones.
_LARGEST_MAP = 10_000_000


def compute_log_likelihood(matrices: Matrices, y: Tensor, diffuse: DiffuseStates) -> Tensor:
    """Return log p(y) of each series, (N,)."""
    operands = matrices.list_operands(y)
    if not diffuse.positions:
        return -kalman_nll(**operands)
    operands["m"], operands["P"] = diffuse.make_prior(operands["m"], operands["P"])
    nll = kalman_nll(**operands, diffuse=diffuse.make_directions(operands["m"]))
    return diffuse.compute_log_unit() - nll


def compute_log_likelihood_in_parts(
    who: str, matrices: Matrices, y: Tensor, diffuse: DiffuseStates, start: int
) -> Tensor:
    """Return log p(y) of each series, (N,), with operators for the first ``start`` steps only.

    These steps determine the diffuse states; after them all distributions are proper, which a kernel on CUDA
    serves in one launch.
    """
    flat, batch = _series.prepare_operands(who, **matrices.list_operands(y))
    run = _diffuse.run_filter(who, batch, flat, diffuse, start)
    m, P = _diffuse.integrate_out_diffuse(run.mean, run.covariance, run.information)
    y, A, B, Q, R, _, _, c = (
        X if i in (5, 6) else _time_series.drop_times(X, start) for i, X in enumerate(flat)
    )
    return -_diffuse.compute_nll(run) - kalman_nll(y, A, B, Q, R, m, P, state_offset=c)


class SeriesEvaluation:
    """The loss of a state space model and its gradient, by one pass of the compiled filter.

    Args:
        make_matrices: Returns the matrices of the model at its present parameters.
        y: (N, T, p), the series.
        diffuse: The diffuse states.
        parameters: The tensors to differentiate with respect to.
    """

    def __init__(
        self,
        make_matrices: Callable[[], Matrices],
        y: Tensor,
        diffuse: DiffuseStates,
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self.make_matrices, self.y, self.diffuse = make_matrices, y, diffuse
        self.parameters = parameters
        self._constant = diffuse.compute_log_unit() * len(y)
        self._is_checked = False

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Set the model to parameters x (k,); return the loss and its gradient (k,)."""
        set_parameters(self.parameters, x)
        with torch.enable_grad():
            flat = self.prepare_operands()
        learned = [i for i, operand in enumerate(flat) if operand.requires_grad]
        results: list[Tensor | None] = [None] * len(flat)
        for i in learned:
            results[i] = torch.empty(flat[i].shape, dtype=flat[i].dtype)
        loss = prepare_gradient([operand.detach() for operand in flat], results)().sum()
        found = torch.autograd.grad(
            [flat[i] for i in learned],
            self.parameters,
            [results[i] for i in learned],
            allow_unused=True,
        )
        gradients = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for gradient, parameter in zip(found, self.parameters, strict=True)
        ]
        return float(loss) - self._constant, join_parameters(gradients)

    @staticmethod
    def sum_values(values: Tensor) -> float:
        """Return the sum of the values of all series."""
        return values.item() if len(values) == 1 else float(values.sum())

    def prepare_operands(self) -> tuple[Tensor, ...]:
        """Return the operands of the registered operator."""
        matrices = self.make_matrices()
        block = matrices.block
        is_plain = (block.A.dim(), block.B.dim(), block.Q.dim(), matrices.R.dim(), block.m.dim()) == (
            3,
            3,
            3,
            3,
            1,
        )
        if is_plain and block.state_offset is None and block.observation_offset is None and self._is_checked:
            # The shapes have been checked once, and checks would take longer than short series.
            m = block.m[None]
            if self.diffuse.positions:
                directions, kept, variances = self._prior
                m = torch.cat((self.diffuse.make_mean(block.m)[:, None], directions), 1)[None]
                P = torch.addcmul(variances, kept, block.P)
            else:
                P = block.P
            return (
                self.y, block.A[None], block.B[None], block.Q[None], matrices.R[None], m, P[None],
                self._offset,
            )  # fmt: skip
        operands = matrices.list_operands(self.y)
        flat_directions: Tensor | None = None
        if self.diffuse.positions:
            operands["m"], operands["P"] = self.diffuse.make_prior(operands["m"], operands["P"])
            flat_directions = self.diffuse.make_directions(operands["m"])
        self._is_checked = True
        return _series.prepare_operands("LinearGaussianSSM", **operands, diffuse=flat_directions).flat

    @functools.cached_property
    def _prior(self) -> tuple[Tensor, Tensor, Tensor]:
        """Flat directions (n, d), a mask (n, n) of the entries of P that count, and what is added to P."""
        zeros = self._offset.flatten()
        return self.diffuse.make_directions(zeros), *self.diffuse.make_masks(zeros)

    @functools.cached_property
    def _offset(self) -> Tensor:
        with torch.no_grad():
            n = self.make_matrices().block.A.shape[-1]
        return self.y.new_zeros(1, 1, n)


class VarianceEvaluation(SeriesEvaluation):
    """The same for a model whose Q, R and P are linear in exp(k raw) of its learned parameters.

    An evaluation then needs no autograd, which would take most of the time of short series: with the weights
    w = exp(k raw),

        [Q R P] = base + wᵀ E,    gradient = k w E [gQ gR gP]

    Use ``make_evaluation``, which checks that a model is of this kind.
    """

    def __init__(self, general: SeriesEvaluation, flat: Sequence[Tensor], linear: LinearMap) -> None:
        super().__init__(general.make_matrices, general.y, general.diffuse, general.parameters)
        # The filter reads its operands from one vector, and writes its gradients into another. NumPy needs
        # less time for
        # a few numbers than torch.
        numbers, gradient = torch.empty_like(linear.base), torch.empty_like(linear.base)
        operands = [operand.detach() for operand in flat]
        results: list[Tensor | None] = [None] * len(flat)
        for i, part in zip(_VARIANCES, _split_like(numbers, flat), strict=True):
            operands[i] = part
        for i, part in zip(_VARIANCES, _split_like(gradient, flat), strict=True):
            results[i] = part
        self._evaluate = prepare_gradient(operands, results)
        self._numbers, self._gradient = numbers.numpy(), gradient.numpy()
        self._powers, self._base, self._E = (part.numpy() for part in linear)

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Return the loss and its gradient (k,) at parameters x (k,)."""
        weights = np.exp(self._powers * x.astype(self._powers.dtype, copy=False))
        np.add(self._base, weights @ self._E, out=self._numbers)
        loss = self.sum_values(self._evaluate()) - self._constant
        return loss, (self._powers * weights * (self._E @ self._gradient)).astype(np.float64, copy=False)


class LossEvaluation:
    """The loss of a model and its gradient by autograd, where there is no compiled filter."""

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> None:
        self._loss, self.parameters = loss, parameters

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Set the model to parameters x (k,); return the loss and its gradient (k,)."""
        set_parameters(self.parameters, x)
        with torch.enable_grad():
            loss = self._loss()
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return loss.item(), join_parameters(found)


def set_parameters(parameters: Sequence[nn.Parameter], x: Array) -> None:
    """Set parameters from one vector (k,)."""
    set_tensors(parameters, torch.from_numpy(x))


@torch.no_grad()
def set_tensors(parameters: Sequence[Tensor], x: Tensor) -> None:
    """Set tensors from one vector (k,)."""
    parts = x.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))


def join_parameters(tensors: Sequence[Tensor]) -> Array:
    """Return the numbers of several tensors as one vector (k,)."""
    joined: Array = torch.cat([tensor.detach().flatten().double() for tensor in tensors]).cpu().numpy()
    return joined


#: Positions of Q, R and P among the operands.
_VARIANCES = (3, 4, 6)


def _split_like(numbers: Tensor, flat: Sequence[Tensor]) -> list[Tensor]:
    parts = numbers.split([flat[i].numel() for i in _VARIANCES])
    return [part.view(flat[i].shape) for part, i in zip(parts, _VARIANCES, strict=True)]


def make_evaluation(
    make_matrices: Callable[[], Matrices],
    y: Tensor,
    diffuse: DiffuseStates,
    parameters: Sequence[nn.Parameter],
    numbers: Sequence[LearnedNumber],
    component: Component | None,
) -> SeriesEvaluation:
    """Return the fastest evaluation that the model allows.

    Args:
        make_matrices: Returns the matrices of the model at its present parameters.
        y: (N, T, p), the series.
        diffuse: The diffuse states.
        parameters: The tensors to differentiate with respect to.
        numbers: What their numbers are.
        component: The component of a model at regular times; None: times are irregular.
    """
    general = SeriesEvaluation(make_matrices, y, diffuse, parameters)
    if not all(number.is_variance for number in numbers):
        from lapgrad.models._state_space.curved_evaluation import make_curved_evaluation

        return (component and make_curved_evaluation(general, component, numbers)) or general
    with torch.enable_grad():
        flat = general.prepare_operands()
    others = [operand for i, operand in enumerate(flat) if i not in _VARIANCES]
    size = sum(flat[i].numel() for i in _VARIANCES)
    if any(operand.requires_grad for operand in others) or size * len(numbers) > _LARGEST_MAP:
        return general
    found = read_linear_map(
        general, flat, range(len(numbers)), [number.power for number in numbers], _VARIANCES
    )
    return general if found is None else VarianceEvaluation(general, flat, found)


class LinearMap(NamedTuple):
    """[... Q R P] = base + wᵀ E, with the weights w = exp(powers · raw) of k variances."""

    powers: Tensor
    base: Tensor
    E: Tensor


@torch.no_grad()
def read_linear_map(
    general: SeriesEvaluation,
    flat: Sequence[Tensor],
    coordinates: Sequence[int],
    powers: Sequence[float],
    operands: Sequence[int],
) -> LinearMap | None:
    """Return the linear map from variances to some operands; None: it is not linear.

    The map is read off at raw = 0 for all variances, and at raw = log 2 / power for one at a time, which
    doubles its weight. It must give the matrices at the present parameters.

    Args:
        general: Computes the matrices.
        flat: All operands at the present parameters.
        coordinates: Which of the learned numbers are variances; the others stay.
        powers: exp(power · raw) is the variance.
        operands: Positions of the operands.
    """
    parameters = general.parameters
    kept = torch.cat([parameter.flatten() for parameter in parameters])
    k = kept.new_tensor(powers)
    is_proper, variances = general.diffuse.make_masks(flat[6])

    def compute(raw: Tensor) -> Tensor:
        set_tensors(parameters, raw)
        block, R = general.make_matrices()
        found = {1: block.A, 3: block.Q, 4: R, 6: torch.addcmul(variances, is_proper, block.P)}
        return torch.cat([found[i].flatten() for i in operands])

    wanted = torch.cat([flat[i].flatten() for i in operands])
    plain = kept.clone()
    plain[coordinates] = 0.0
    at_ones = compute(plain)
    if len(at_ones) != len(wanted):
        set_tensors(parameters, kept)
        return None
    E = wanted.new_empty(len(k), len(wanted))
    for row, i in enumerate(coordinates):
        raw = plain.clone()
        raw[i] = 0.6931471805599453 / powers[row]
        E[row] = compute(raw) - at_ones
    set_tensors(parameters, kept)
    # Products of small integers and powers of 2 are exact; rounding errors of other products are set to zero.
    E[E.abs() < 1e-12 * E.abs().amax()] = 0.0
    base = at_ones - E.sum(0)
    # What does not depend on a variance has no rounding error, such as cos(π / 2) = 6e-17 of a wave.
    base[(base.abs() < 1e-12 * at_ones.abs().amax()) & (E != 0.0).any(0)] = 0.0
    found = base + torch.exp(k * kept[coordinates]) @ E
    tolerance = 64 * torch.finfo(k.dtype).eps
    if bool(((found - wanted).abs() > tolerance * wanted.abs() + tolerance * 1e-3 * base.abs()).any()):
        return None
    return LinearMap(k, base, E)
