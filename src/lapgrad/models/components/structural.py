"""Trends, seasons, autoregressions and regressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad._torch import lu as _torch_lu
from lapgrad.models import _checks
from lapgrad.models._parameters import Value, bounded, positive
from lapgrad.models._storage.entries import FLAG, INTEGER, OPTIONAL_NUMBER, Entry, check_entries
from lapgrad.models.components.base import Block, Component


class LocalLevel(Component):
    """A level that follows a random walk, h[t+1] = h[t] + N(0, variance), and is observed directly.

    Args:
        variance: Variance of a step; None: a tenth of the variance of the data.
    """

    states, diffuse = 1, (True,)
    variance = positive()

    def __init__(self, variance: Value | None = None) -> None:
        super().__init__()
        self._set_or_defer({"variance": variance})

    def block(self, times: int) -> Block:
        """Return the matrices of a random walk."""
        variance = self.variance
        one = variance.new_ones(1, 1, 1)
        return Block(one, one, variance.reshape(1, 1, 1), variance.new_zeros(1), variance.new_zeros(1, 1))

    def prepare(self, variance: float) -> None:
        """Set a variance that was not given to a tenth of that of the data."""
        self._set_deferred({"variance": 0.1 * variance})

    def config(self) -> dict[str, Any]:
        """Return no entries."""
        return {}


class LocalLinearTrend(Component):
    """A level with a slope: level += slope + noise, slope = damping · slope + noise.

    Args:
        level_variance: Variance of the noise of the level; None: a tenth of the variance of the data; 0: the
            level has no noise of its own (a smooth trend).
        slope_variance: Variance of the noise of the slope; None: a hundredth of the variance of the data.
        damped: Learn the damping, between 0 and 1, so that distant forecasts become flat; else it is 1.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"level_variance": OPTIONAL_NUMBER, "damped": FLAG}
    states = 2
    level_variance = positive()
    slope_variance = positive()
    damping = bounded(0.0, 1.0)

    def __init__(
        self,
        level_variance: Value | None = None,
        slope_variance: Value | None = None,
        *,
        damped: bool = False,
    ) -> None:
        super().__init__()
        self.smooth = not isinstance(level_variance, Tensor) and level_variance == 0
        named = {} if self.smooth else {"level_variance": level_variance}
        self._set_or_defer({**named, "slope_variance": slope_variance})
        self.damped = damped
        self.diffuse = (True, not damped)
        if damped:
            self.damping = 0.9

    def block(self, times: int) -> Block:
        """[[1, 1], [0, damping]]; the prior of a damped slope is its stationary distribution."""
        slope = self.slope_variance
        zero, one = slope.new_zeros(()), slope.new_ones(())
        damping = self.damping if self.damped else one
        A = torch.stack((one, one, zero, damping)).view(1, 2, 2)
        Q = torch.diag_embed(torch.stack((zero if self.smooth else self.level_variance, slope)))[None]
        stationary = slope / (1 - damping.square()) if self.damped else zero
        P = torch.diag_embed(torch.stack((zero, stationary)))
        return Block(A, slope.new_tensor([[[1.0, 0.0]]]), Q, slope.new_zeros(2), P)

    def prepare(self, variance: float) -> None:
        """Set variances that were not given to fractions of that of the data."""
        self._set_deferred({"level_variance": 0.1 * variance, "slope_variance": 0.01 * variance})

    def config(self) -> dict[str, Any]:
        """Which of the variances there are, and whether the slope is damped."""
        return {"level_variance": 0 if self.smooth else None, "damped": self.damped}


class Seasonal(Component):
    """A pattern of ``period`` values that sum to N(0, variance), so that it changes slowly.

    Args:
        period: Steps of a season, at least 2.
        variance: Variance of that sum; None: a hundredth of the variance of the data.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"period": INTEGER}
    variance = positive()

    def __init__(self, period: int, variance: Value | None = None) -> None:
        super().__init__()
        if period < 2:
            raise _errors.OptionError(f"Seasonal: period must be at least 2, got {period}.")
        self.period, self.states, self.diffuse = period, period - 1, (True,) * (period - 1)
        self._set_or_defer({"variance": variance})

    def block(self, times: int) -> Block:
        """Return the matrices: the next value is minus the sum of the period - 1 values before it."""
        variance, n = self.variance, self.states
        A = torch.cat(
            (variance.new_full((1, n), -1.0), torch.eye(n, dtype=variance.dtype, device=variance.device))
        )
        first = torch.eye(1, n, dtype=variance.dtype, device=variance.device)
        Q = variance * first.mT * first
        return Block(A[None, :n], first[None], Q[None], variance.new_zeros(n), variance.new_zeros(n, n))

    def prepare(self, variance: float) -> None:
        """Set a variance that was not given to a hundredth of that of the data."""
        self._set_deferred({"variance": 0.01 * variance})

    def config(self) -> dict[str, Any]:
        """The period."""
        return {"period": self.period}


class AR(Component):
    """A stationary autoregression: x[t] = Σ coefficients[i] x[t-1-i] + N(0, variance).

    The partial autocorrelations are learned, each between -1 and 1: the process is then always stationary.

    Args:
        order: How many earlier values x[t] depends on.
        variance: Variance of the noise; None: a tenth of the variance of the data.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"order": INTEGER}
    variance = positive()
    partial = bounded(-1.0, 1.0)

    def __init__(self, order: int = 1, variance: Value | None = None) -> None:
        super().__init__()
        if order < 1:
            raise _errors.OptionError(f"AR: order must be positive, got {order}.")
        self.order = self.states = order
        self.diffuse = (False,) * order
        self._set_or_defer({"variance": variance})
        self.partial = [0.5] + [0.0] * (order - 1)

    @property
    def coefficients(self) -> Tensor:
        """The coefficients (order,), by the recursion of Durbin and Levinson."""
        found = self.partial[:1]
        for k in range(1, self.order):
            last = self.partial[k : k + 1]
            found = torch.cat((found - last * found.flip(0), last))
        return found

    def block(self, times: int) -> Block:
        """The companion matrix; the prior is the stationary distribution, P = A P Aᵀ + Q."""
        n, variance = self.order, self.variance
        identity = torch.eye(n, dtype=variance.dtype, device=variance.device)
        A = torch.cat((self.coefficients[None], identity[: n - 1]))
        first = identity[:1]
        Q = variance * first.mT * first
        # vec(P) = (I - A ⊗ A)⁻¹ vec(Q), in float64 because the system is nearly singular near a unit root.
        wide = A.double()
        system = torch.eye(n * n, dtype=wide.dtype, device=A.device) - torch.kron(wide, wide)
        P = _torch_lu.solve(system, Q.double().reshape(-1, 1)).view(n, n).to(A.dtype)
        return Block(A[None], first[None], Q[None], variance.new_zeros(n), 0.5 * (P + P.mT))

    def prepare(self, variance: float) -> None:
        """Set a variance that was not given to a tenth of that of the data."""
        self._set_deferred({"variance": 0.1 * variance})

    def config(self) -> dict[str, Any]:
        """The order."""
        return {"order": self.order}


class Regression(Component):
    """A linear function of known inputs, X[t] · h, with coefficients h that are constant or random walks.

    Args:
        X: (rows, k), one row per time. Forecasts use the rows after the end of the series.
        variance: Variance of a step of each coefficient; None: they are constant.
    """

    X: Tensor
    variance = positive()

    def __init__(self, X: Tensor, variance: Value | None = None) -> None:
        super().__init__()
        self.register_buffer("X", _checks.check_inputs("Regression", X).detach().clone())
        self.states = self.X.shape[1]
        self.diffuse = (True,) * self.states
        self.wandering = variance is not None
        if variance is not None:
            self.variance = variance

    def block(self, times: int) -> Block:
        """Return the matrices: X[t] maps the coefficients to the observation at time t."""
        if times > len(self.X):
            raise _errors.ShapeError(
                f"Regression: X has {len(self.X)} rows, {times} are needed: as many as the series and "
                f"the forecast have steps."
            )
        identity = torch.eye(self.states, dtype=self.X.dtype, device=self.X.device)
        Q = self.variance * identity if self.wandering else torch.zeros_like(identity)
        return Block(
            identity[None],
            self.X[:times, None],
            Q[None],
            self.X.new_zeros(self.states),
            torch.zeros_like(identity),
        )

    def config(self) -> dict[str, Any]:
        """Return whether the coefficients vary; X is saved as a tensor."""
        return {"wandering": self.wandering}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a component with the inputs of the file."""
        check_entries(config, {"wandering": FLAG}, f"the component {cls.__name__}")
        return cls(tensors["X"], 1.0 if config["wandering"] else None)
