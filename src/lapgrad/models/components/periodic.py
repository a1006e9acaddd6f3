"""Seasons of any period by harmonics, and cycles whose period is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._parameters import Hyperparameter, Value, bounded
from lapgrad.models._state_space.curved_block import (
    Array,
    CurvedBlock,
    compute_stationary_variance,
    squash_number,
)
from lapgrad.models._state_space.starts import SeriesFacts
from lapgrad.models._state_space.variances import variance as make_variance
from lapgrad.models._storage.entries import FLAG, INTEGER, NUMBER, NUMBERS, Entry
from lapgrad.models.components.base import Block, Component

_NO_CYCLE = 1e-3
"""A cycle that fades to this part in one step is none."""


class HarmonicSeasonal(Component):
    """A season of any period, also one that is no integer: a sum of waves whose amplitudes wander.

    Wave j has the frequency 2π j / period. It has two states, which turn by that angle in a step and get
    noise N(0, variance) each; the first one is seen. A wave of half the period 2 has one state, of
    alternating sign.

    Args:
        period: Steps of a season, more than 2; such as 365.25 / 7 for years of weeks.
        harmonics: How many waves, at most period / 2; None: all of them, at most 6.
        variance: Variance of the noise of a state; None: chosen by the data; 0: the season is constant.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"period": NUMBER, "harmonics": INTEGER}
    label = "seasonal"
    variance = make_variance()

    def __init__(self, period: float, harmonics: int | None = None, variance: Value | None = None) -> None:
        super().__init__()
        if not (math.isfinite(period) and period > 2):
            raise _exceptions.OptionError(f"HarmonicSeasonal: period must be more than 2, got {period}.")
        most = math.floor(period / 2)
        harmonics = min(most, 6) if harmonics is None else harmonics
        if not 1 <= harmonics <= most:
            raise _exceptions.OptionError(
                f"HarmonicSeasonal: harmonics must be at least 1 and at most period / 2, got {harmonics}."
            )
        self.period, self.harmonics = float(period), harmonics
        # The second state of a wave of period 2 would never be seen.
        self.states = 2 * harmonics - (2 * harmonics == period)
        self.diffuse = (True,) * self.states
        self._set_or_defer({"variance": variance})

    def block(self, times: int) -> Block:
        """Return the matrices: rotations, one block for each wave."""
        return self._make_block(self.variance.new_ones(1))

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices for steps of these lengths (T,): angles and variances grow with them."""
        return self._make_block(gaps)

    def _make_block(self, gaps: Tensor) -> Block:
        variance, n = self.variance, self.states
        waves = torch.arange(1, self.harmonics + 1, dtype=gaps.dtype, device=gaps.device)
        A = _rotate(2.0 * math.pi / self.period * gaps[:, None] * waves)
        identity = torch.eye(n, dtype=variance.dtype, device=variance.device)
        B = (torch.arange(n, device=variance.device) % 2 == 0).to(variance.dtype)
        Q = (variance * gaps)[:, None, None] * identity
        return Block(A[:, :n, :n], B.view(1, 1, n), Q, variance.new_zeros(n), torch.zeros_like(identity))

    def start_from(self, data: SeriesFacts) -> None:
        """Set a variance that was not given to a fraction of ``step_variance``."""
        self._set_deferred({"variance": 0.003 * data.step_variance})

    def list_periods(self) -> list[float]:
        """Return the period."""
        return [self.period]

    def config(self) -> dict[str, Any]:
        """Return the period, and how many waves."""
        return {"period": self.period, "harmonics": self.harmonics}


class _Frequency(Hyperparameter):
    """A descriptor of a number between the two ``frequency_bounds`` of its module, stored as a logit."""

    option_of_bounds = "period_bounds"

    def __init__(self) -> None:
        super().__init__(
            torch.sigmoid,
            torch.logit,
            lambda value: (value > 0) & (value < 1),
            "between its bounds",
            limits=(0.0, math.pi),
        )

    @overload
    def __get__(self, module: None, owner: type) -> Hyperparameter: ...

    @overload
    def __get__(self, module: nn.Module, owner: type) -> Tensor: ...

    def __get__(self, module: nn.Module | None, owner: type) -> Hyperparameter | Tensor:
        if module is None:
            return self
        low, high = _get_frequency_bounds(module)
        return low + (high - low) * self.from_raw(getattr(module, self.raw_name))

    def __set__(self, module: nn.Module, value: Value | None) -> None:
        if value is None:
            super().__set__(module, None)
            return
        low, high = _get_frequency_bounds(module)
        number = value.detach().double() if isinstance(value, Tensor) else torch.as_tensor(value).double()
        if not bool(((number > low) & (number < high)).all()):
            raise _exceptions.OptionError(
                f"{self._describe(module)} must be between {low:.4g} and {high:.4g}, the period between "
                f"{2 * math.pi / high:.4g} and {2 * math.pi / low:.4g}; got {value!r}."
            )
        super().__set__(module, (number - low) / (high - low))


class Cycle(Component):
    """A cycle whose period is learned: a wave of two states that turns, fades and gets noise N(0, variance).

    Args:
        period: Steps of a cycle to begin with; None: that of the strongest wave in the data.
        variance: Variance of the noise of a state; None: chosen by the data; 0: the cycle is a fixed wave.
        damped: Learn the damping, between 0 and 1, by which the wave fades in a step; else it is 1.
        stationary: The first state of a damped cycle has the stationary distribution. Else nothing is known
            of it, as in statsmodels; if the data have no cycle, the damping then goes to zero, where the
            likelihood grows without bound (``fit`` warns).
        period_bounds: The period stays between these two.

    Attributes:
        frequency: The angle of a step, 2π / period; learned.
        damping: Learned if ``damped``.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {
        "damped": FLAG,
        "stationary": FLAG,
        "period_bounds": NUMBERS,
    }
    states, label = 2, "cycle"
    variance = make_variance()
    damping = bounded(0.0, 1.0)
    frequency: Any = _Frequency()

    def __init__(
        self,
        period: float | None = None,
        variance: Value | None = None,
        *,
        damped: bool = True,
        stationary: bool = False,
        period_bounds: tuple[float, float] = (2.0, 1000.0),
    ) -> None:
        super().__init__()
        low, high = period_bounds
        if not (2.0 <= low < high and math.isfinite(high)):
            raise _exceptions.OptionError(
                f"Cycle: period_bounds must be two increasing numbers, from 2 on, got {tuple(period_bounds)}."
            )
        self.period_bounds = (float(low), float(high))
        self.frequency_bounds = (2.0 * math.pi / high, 2.0 * math.pi / low)
        if stationary and not damped:
            raise _exceptions.OptionError("Cycle: only a damped cycle can be stationary.")
        self.damped, self.stationary, self.diffuse = damped, stationary, (not stationary,) * 2
        self.curved = ("frequency", "damping") if damped else ("frequency",)
        self._needs_period = period is None
        self.period = math.sqrt(low * high) if period is None else period
        self._set_or_defer({"variance": variance})
        if damped:
            self.damping = 0.9

    @property
    def period(self) -> Tensor:
        """Steps of a cycle."""
        return 2.0 * math.pi / self.frequency

    @period.setter
    def period(self, value: Value) -> None:
        self.frequency = 2.0 * math.pi / torch.as_tensor(value, dtype=torch.float64)

    def block(self, times: int) -> Block:
        """Return the matrices: damping times a rotation; the prior is stationary, if it can be."""
        return self._make_block(self.variance.new_ones(1))

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices for steps of these lengths (T,)."""
        return self._make_block(gaps)

    def curve(self, raw: Array) -> CurvedBlock:
        """Return damping times a rotation, and the stationary distribution, with their derivatives."""
        low, high = self.frequency_bounds
        angle, of_angle = squash_number(float(raw[0]), low, high)
        damping, of_damping = squash_number(float(raw[1]), 0.0, 1.0) if self.damped else (1.0, 0.0)
        c, s = math.cos(angle), math.sin(angle)
        transition = np.array([[damping * c, damping * s], [-damping * s, damping * c]])
        turn, fade = of_angle * damping, of_damping
        slopes = np.array(
            [[[-turn * s, turn * c], [-turn * c, -turn * s]], [[fade * c, fade * s], [-fade * s, fade * c]]]
        )
        prior, prior_slopes = np.zeros((2, 2)), np.zeros((2, 2, 2))
        if self.stationary:
            stationary = compute_stationary_variance(1.0 - damping**2)
            prior = stationary * np.eye(2)
            prior_slopes[1] = 2.0 * of_damping * damping * stationary * prior
        k = len(raw)
        return CurvedBlock(transition, slopes[:k], prior, prior_slopes[:k])

    def _make_block(self, gaps: Tensor) -> Block:
        # In a step of length g: A = damping^g · rotation, Q = variance (1 - damping^2g) / (1 - damping^2).
        variance = self.variance
        identity = torch.eye(2, dtype=variance.dtype, device=variance.device)
        A, noise, P = _rotate(self.frequency * gaps[:, None]), variance * gaps, torch.zeros_like(identity)
        if self.damped:
            fades, lost = self.damping**gaps, 1.0 - self.damping.square()
            A = fades[:, None, None] * A
            # If rounding has made the damping 1, the quotient would be 0 / 0: the wave does not fade.
            part = (1.0 - fades.square()) / lost.clamp_min(torch.finfo(lost.dtype).tiny)
            noise = variance * torch.where(lost > 0.0, part, gaps)
            P = variance / lost * identity if self.stationary else P
        B = variance.new_tensor([[[1.0, 0.0]]])
        return Block(A, B, noise[:, None, None] * identity, variance.new_zeros(2), P)

    def find_degeneracy(self) -> str | None:
        """Return what is wrong with a damping of nearly zero: the second state is not seen any more."""
        if self.stationary or not self.damped:
            return None
        damping = self.damping.detach().item()
        if damping > _NO_CYCLE:
            return None
        return (
            f"{self.label}.damping has become {damping:.1g}: the data have no such cycle, and "
            f"the likelihood has no maximum, because nothing is known of its first state. "
            f"Cycle(stationary=True) has one."
        )

    def start_from(self, data: SeriesFacts) -> None:
        """Choose the period and the variance if they were not given."""
        if self._needs_period:
            low, high = self.frequency_bounds
            inside = 1e-3 * (high - low)
            found = 2.0 * math.pi / data.find_period()
            self.frequency = min(max(found, low + inside), high - inside)
            self._needs_period = False
        self._set_deferred({"variance": 0.3 * data.step_variance})

    def config(self) -> dict[str, Any]:
        """Whether it is damped and stationary, and the bounds of the period."""
        return {
            "damped": self.damped,
            "stationary": self.stationary,
            "period_bounds": list(self.period_bounds),
        }


def _get_frequency_bounds(module: nn.Module) -> tuple[float, float]:
    bounds: tuple[float, float] = module.__dict__["frequency_bounds"]
    return bounds


def _rotate(angles: Tensor) -> Tensor:
    """Return rotations by angles (T, k) as blocks on the diagonal of matrices (T, 2 k, 2 k)."""
    cosines, sines = angles.cos(), angles.sin()
    blocks = torch.stack((cosines, sines, -sines, cosines), -1).view(*angles.shape, 2, 2)
    k = angles.shape[1]
    places = torch.eye(k, dtype=angles.dtype, device=angles.device)[:, None, :, None]
    return (blocks[:, :, :, None, :] * places).reshape(len(angles), 2 * k, 2 * k)
