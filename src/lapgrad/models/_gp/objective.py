"""What a fit of exact Gaussian process regression minimises: a criterion, and priors of hyper-parameters.

With one lengthscale per dimension, the maximum of the likelihood follows accidents of the data: lengthscales
of irrelevant dimensions diverge, and others become so short that they explain noise. The default criterion
gives them a weak prior,

    log l_j ~ N(log(√d s_j) + c, 0.7²),    c ~ N(0, 1),    s_j: standard deviation of input j

which does not depend on units. c is common to all dimensions: before the data are seen, hardly anything is
known about how smooth the function is. c is integrated out. Lengthscales with a prior of the user, and single
ones, get no weak prior.

With these lengthscales, learned noise gets a weak prior, too:

    log noise_var ~ N(log(0.05 v), 3²),    v: variance of y

A few rows that happen to be nearly equal pull the likelihood towards no noise at all, and lengthscales so
short that the process interpolates. The prior is wide: data that indeed have no noise overrule it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.models._parameters import ParametrisedModule, get_priors
from lapgrad.models._scaling import compute_spread
from lapgrad.models.kernels._start import compute_lengthscale
from lapgrad.models.kernels.base import Kernel
from lapgrad.models.kernels.stationary import Stationary

CRITERIA = ("regularised", "likelihood", "leave-one-out")
_DEVIATION = 0.7
"""Of the logarithms of lengthscales: of 0.55, 0.7, 0.85, 1 and 1.4 the one that predicts other data best."""
_COMMON_DEVIATION = 1.0
"""Of what all these logarithms have in common; 0.7 and 3 predict other data as well."""


_NOISE_DEVIATION = 3.0
"""Of the logarithm of the variance of the noise: decades are within two deviations. With 2, noise is found
where repeated rows agree exactly, and other data are predicted worse."""
_TYPICAL_NOISE = 0.05
"""The part of the variance of y in the middle of that prior."""


class WeakPrior(NamedTuple):
    """A prior of the lengthscales of one kernel.

    Attributes:
        kernel: Has the lengthscales.
        centre: (d,), the mean of their logarithms.
    """

    kernel: Stationary
    centre: Tensor

    def compute_penalty(self, batch: int) -> Tensor:
        """Return minus the log density of the logarithms, without constants, (*batch).

        Their covariance is σ² I + τ² 1 1ᵀ, whose inverse is (I - τ² / (σ² + d τ²) 1 1ᵀ) / σ².
        """
        logarithms = self.kernel.lengthscale.log()
        deviations = (logarithms - self.centre.to(logarithms)).flatten(batch) / _DEVIATION
        ratio = (_COMMON_DEVIATION / _DEVIATION) ** 2
        shared = ratio / (1.0 + deviations.shape[-1] * ratio)
        return 0.5 * (deviations.square().sum(-1) - shared * deviations.sum(-1).square())


class WithCriterion(ParametrisedModule):
    """A mixin for models with a kernel, a likelihood and a leave-one-out criterion.

    Attributes:
        criterion: What a fit minimises, one of ``CRITERIA``.
    """

    kernel: Kernel
    criterion: str
    point_noise: Tensor | None
    noise_var: Any
    _weak_priors: list[WeakPrior]
    _noise_centre: float | None = None

    def set_criterion(self, criterion: str, inputs: Tensor, outputs: Tensor) -> None:
        """Choose what a fit minimises; inputs (n, d) and outputs (n, k) are in the units of the model."""
        if criterion not in CRITERIA:
            raise _errors.unknown_option(f"{type(self).__name__}.fit", "criterion", criterion, CRITERIA)
        self.criterion = criterion
        self._weak_priors = find_weak_priors(self.kernel, inputs) if criterion == "regularised" else []
        self._noise_centre = None
        is_learned = self.point_noise is None and self.get_parameter("raw_noise_var").requires_grad
        if self._weak_priors and is_learned and "noise_var" not in get_priors(self):
            self._noise_centre = math.log(_TYPICAL_NOISE * float(compute_spread(outputs).square().mean()))

    def add_priors(self, value: Tensor, batch: int = 0) -> Tensor:
        """Return the value of a criterion, (*batch), minus the log densities of hyper-parameters.

        Args:
            value: Of the criterion.
            batch: How many leading dimensions of all hyper-parameters are those of a batch of models.
        """
        value = value - self.log_prior(batch) if self.has_priors() else value
        return value + self._compute_penalty(batch) if self._weak_priors else value

    def _compute_penalty(self, batch: int) -> Tensor:
        """Return minus the log density of the weak priors, without constants, (*batch)."""
        penalty = sum(prior.compute_penalty(batch) for prior in self._weak_priors)
        if self._noise_centre is not None:
            noise = self.noise_var.flatten(batch).sum(-1) if batch else self.noise_var
            penalty = penalty + 0.5 * ((noise.log() - self._noise_centre) / _NOISE_DEVIATION).square()
        return cast(Tensor, penalty)

    @torch.no_grad()
    def measure_weak_priors(self) -> float:
        """Return the part of the objective that comes from weak priors, at the present hyper-parameters."""
        return float(self._compute_penalty(0)) if self._weak_priors else 0.0


@torch.no_grad()
def find_weak_priors(kernel: Kernel, inputs: Tensor) -> list[WeakPrior]:
    """Return a weak prior for each part of a kernel that learns several lengthscales, and has no prior."""
    found = []
    for part, columns in kernel.iterate_parts(inputs):
        if not isinstance(part, Stationary) or "lengthscale" in get_priors(part):
            continue
        raw = part.get_parameter("raw_lengthscale")
        if raw.requires_grad and raw.dim() == 1 and len(raw) > 1:
            found.append(WeakPrior(part, compute_lengthscale(columns, True).log()))
    return found
