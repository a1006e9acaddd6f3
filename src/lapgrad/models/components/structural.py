"""Trends, seasons, autoregressions and regressions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad._torch import lu as _torch_lu
from lapgrad.models import _checks
from lapgrad.models._arrays import conversion as _conversion
from lapgrad.models._arrays.labels import check_same_labels, find_left_out, order_columns
from lapgrad.models._parameters import Value, bounded
from lapgrad.models._state_space.curved_block import (
    Array,
    CurvedBlock,
    compute_stationary_variance,
    squash,
    squash_number,
)
from lapgrad.models._state_space.starts import SeriesFacts
from lapgrad.models._state_space.variances import variance as make_variance
from lapgrad.models._storage.entries import FLAG, INTEGER, OPTIONAL_NUMBER, TEXTS, Entry, check_entries
from lapgrad.models.components.base import Block, Component, Sum


class LocalLevel(Component):
    """A level that follows a random walk, h[t+1] = h[t] + N(0, variance), and is observed directly.

    Args:
        variance: Variance of a step; None: chosen by the data; 0: the level is constant.
    """

    states, diffuse, label = 1, (True,), "level"
    variance = make_variance()

    def __init__(self, variance: Value | None = None) -> None:
        super().__init__()
        self._set_or_defer({"variance": variance})

    def block(self, times: int) -> Block:
        """Return the matrices of a random walk."""
        return self.block_between(self.variance.new_ones(1))

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices of a random walk whose variance grows by ``variance`` in a unit of time."""
        one = gaps.new_ones(1, 1, 1)
        return Block(one, one, (self.variance * gaps)[:, None, None], gaps.new_zeros(1), gaps.new_zeros(1, 1))

    def start_from(self, data: SeriesFacts) -> None:
        """Set a variance that was not given to a fraction of ``step_variance``."""
        self._set_deferred({"variance": 0.3 * data.step_variance})

    def config(self) -> dict[str, Any]:
        """Return no entries."""
        return {}


class LocalLinearTrend(Component):
    """A level with a slope: level += slope + noise, slope = damping · slope + noise.

    Args:
        level_variance: Variance of the noise of the level; None: chosen by the data; 0: the level has no
            noise of its own (a smooth trend).
        slope_variance: Variance of the noise of the slope; None: chosen by the data; 0: the slope is
            constant.
        damped: Learn the damping, between 0 and 1, so that distant forecasts become flat; else it is 1.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"level_variance": OPTIONAL_NUMBER, "damped": FLAG}
    states, label = 2, "trend"
    level_variance = make_variance()
    slope_variance = make_variance()
    damping = bounded(0.0, 1.0)

    def __init__(
        self,
        level_variance: Value | None = None,
        slope_variance: Value | None = None,
        *,
        damped: bool = False,
    ) -> None:
        super().__init__()
        # A smooth trend has no parameter for this variance.
        is_smooth = level_variance is not None and not bool(torch.as_tensor(level_variance).any())
        named = {} if is_smooth else {"level_variance": level_variance}
        self._set_or_defer({**named, "slope_variance": slope_variance})
        self.damped = damped
        self.diffuse = (True, not damped)
        if damped:
            self.damping = 0.9

    @property
    def smooth(self) -> bool:
        """Whether the level has no noise of its own."""
        return not hasattr(self, "raw_level_variance")

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

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices of the process in continuous time: the slope adds up while it wanders.

        In a step of length g: A = [[1, g], [0, 1]] and Q = [[level g + slope g³/3, slope g²/2], [slope g²/2,
        slope g]].
        """
        if self.damped:
            return super().block_between(gaps)
        slope, one, zero = self.slope_variance, torch.ones_like(gaps), torch.zeros_like(gaps)
        level = zero if self.smooth else self.level_variance * gaps
        A = torch.stack((one, gaps, zero, one), -1).view(-1, 2, 2)
        mixed = 0.5 * slope * gaps.square()
        Q = torch.stack((level + slope * gaps**3 / 3.0, mixed, mixed, slope * gaps), -1).view(-1, 2, 2)
        return Block(A, gaps.new_tensor([[[1.0, 0.0]]]), Q, gaps.new_zeros(2), gaps.new_zeros(2, 2))

    def start_from(self, data: SeriesFacts) -> None:
        """Set variances that were not given to fractions of ``step_variance``."""
        v = data.step_variance
        self._set_deferred({"level_variance": 0.3 * v, "slope_variance": 0.003 * v})

    def config(self) -> dict[str, Any]:
        """Which of the variances there are, and whether the slope is damped."""
        return {"level_variance": 0 if self.smooth else None, "damped": self.damped}


class Seasonal(Component):
    """A pattern of ``period`` values that sum to N(0, variance), so that it changes slowly.

    Args:
        period: Steps of a season, at least 2.
        variance: Variance of that sum; None: chosen by the data; 0: the pattern is constant.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"period": INTEGER}
    label = "seasonal"
    variance = make_variance()

    def __init__(self, period: int, variance: Value | None = None) -> None:
        super().__init__()
        if not _checks.is_integer(period, 2):
            raise _exceptions.OptionError(
                f"Seasonal: period must be an integer of at least 2, got {period!r}. "
                f"HarmonicSeasonal takes others."
            )
        self.period = period = int(period)
        self.states, self.diffuse = period - 1, (True,) * (period - 1)
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

    def start_from(self, data: SeriesFacts) -> None:
        """Set a variance that was not given to a fraction of ``step_variance``."""
        self._set_deferred({"variance": 0.03 * data.step_variance})

    def list_periods(self) -> list[float]:
        """Return the period."""
        return [float(self.period)]

    def config(self) -> dict[str, Any]:
        """Return the period."""
        return {"period": self.period}


class AR(Component):
    """A stationary autoregression: x[t] = Σ coefficients[i] x[t-1-i] + N(0, variance).

    The partial autocorrelations are learned, each between -1 and 1: the process is then always stationary.

    Args:
        order: How many earlier values x[t] depends on.
        variance: Variance of the noise; None: chosen by the data.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"order": INTEGER}
    label = "ar"
    variance = make_variance()
    partial = bounded(-1.0, 1.0)
    curved = ("partial",)

    def __init__(self, order: int = 1, variance: Value | None = None) -> None:
        super().__init__()
        if not _checks.is_integer(order):
            raise _exceptions.OptionError(f"AR: order must be a positive integer, got {order!r}.")
        self.order = self.states = order = int(order)
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
        """Return the companion matrix; the prior is the stationary distribution, P = A P Aᵀ + Q."""
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

    def curve(self, raw: Array) -> CurvedBlock:
        """Return the companion matrix and the stationary distribution, with their derivatives."""
        n = self.order
        if n == 1:
            # Arrays would take most of the time of a fit of a short series.
            a, of_a = squash_number(float(raw[0]), -1.0, 1.0)
            stationary = compute_stationary_variance(1.0 - a * a)
            numbers = np.array([a, of_a, stationary, 2.0 * a * of_a * stationary**2])
            A, of_A, P, of_P = numbers.reshape(4, 1, 1, 1)
            return CurvedBlock(A[0], of_A, P[0], of_P)
        if n == 2:
            return _curve_second_order(*(squash_number(float(number), -1.0, 1.0) for number in raw))
        partial, slopes = squash(raw, -1.0, 1.0)
        variance = compute_stationary_variance(float(np.prod(1.0 - partial**2)))
        if not math.isfinite(variance):
            return CurvedBlock(*(np.full(shape, math.nan) for shape in 2 * ((n, n), (n, n, n))))
        found, gradient = partial[:1], np.diag(slopes)[:, :1]
        for k in range(1, n):
            last, of_last = partial[k], np.diag(slopes)[:, k : k + 1]
            gradient = np.hstack((gradient - of_last * found[::-1] - last * gradient[:, ::-1], of_last))
            found = np.append(found - last * found[::-1], last)
        A, gradient_of_A = np.eye(n, k=-1), np.zeros((n, n, n))
        A[0], gradient_of_A[:, 0] = found, gradient
        # P = A P Aᵀ + e eᵀ, and dP = A dP Aᵀ + dA P Aᵀ + A P dAᵀ.
        squared = (A[:, None, :, None] * A[:, None]).reshape(n * n, n * n)  # A ⊗ A
        inverse = np.linalg.inv(np.eye(n * n) - squared)
        P = inverse[:, 0].reshape(n, n)
        P = 0.5 * (P + P.T)
        half = gradient_of_A @ (P @ A.T)
        gradient_of_P = ((half + half.transpose(0, 2, 1)).reshape(n, -1) @ inverse.T).reshape(n, n, n)
        return CurvedBlock(A, gradient_of_A, P, gradient_of_P)

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices in continuous time, of order 1: it decays by coefficient^gap."""
        if self.order > 1:
            return super().block_between(gaps)
        coefficient, variance = self.coefficients.clamp_min(1e-6), self.variance
        fades, stationary = coefficient**gaps, variance / (1.0 - coefficient.square())
        one = gaps.new_ones(1, 1, 1)
        Q = (stationary * (1.0 - fades.square()))[:, None, None]
        return Block(fades[:, None, None], one, Q, gaps.new_zeros(1), stationary.view(1, 1))

    def start_from(self, data: SeriesFacts) -> None:
        """Set a variance that was not given to a fraction of ``step_variance``."""
        self._set_deferred({"variance": 0.5 * data.step_variance})

    def config(self) -> dict[str, Any]:
        """Return the order."""
        return {"order": self.order}


def _curve_second_order(first: tuple[float, float], second: tuple[float, float]) -> CurvedBlock:
    """Return the matrices of two steps, given both partial autocorrelations p and q with their derivatives.

    A = [[p (1 - q), q], [1, 0]] and P = c [[1, p], [p, 1]] with c = 1 / ((1 - p²) (1 - q²)).
    """
    (p, of_p), (q, of_q) = first, second
    c = compute_stationary_variance((1.0 - p * p) * (1.0 - q * q))
    c_p, c_q = 2.0 * p * c * c * (1.0 - q * q), 2.0 * q * c * c * (1.0 - p * p)
    A = np.array([p * (1.0 - q), q, 1.0, 0.0])
    of_A = np.array([(1.0 - q) * of_p, 0.0, 0.0, 0.0, -p * of_q, of_q, 0.0, 0.0])
    P = np.array([c, p * c, p * c, c])
    of_P = np.array(
        [c_p * of_p, *[(c + p * c_p) * of_p] * 2, c_p * of_p, c_q * of_q, *[p * c_q * of_q] * 2, c_q * of_q]
    )
    return CurvedBlock(A.reshape(2, 2), of_A.reshape(2, 2, 2), P.reshape(2, 2), of_P.reshape(2, 2, 2))


class LaterTimes(NamedTuple):
    """The times after the end of a series.

    Attributes:
        steps: How many.
        index: Their labels, an index of pandas; None: not known.
    """

    steps: int
    index: Any


class Regression(Component):
    """A linear function of known inputs, X[t] · h, with coefficients h that are constant or random walks.

    Args:
        X: (rows, k), one row per time: a tensor, an array, or a DataFrame, whose labels must be those of the
            series. Forecasts use the rows after the end of the series, or those that they are passed.
        variance: Variance of a step of each coefficient; None or 0: they are constant.
    """

    X: Tensor
    label = "regression"
    variance = make_variance()

    def __init__(self, X: Any, variance: Value | None = None) -> None:
        super().__init__()
        rows, self._origin = _conversion.read_array("Regression", X, "X")
        self.register_buffer("X", _checks.check_inputs("Regression", rows).detach().clone())
        self.states = self.X.shape[1]
        self.diffuse = (True,) * self.states
        self.wandering = variance is not None and bool(torch.as_tensor(variance).any())
        if variance is not None and self.wandering:
            self.variance = variance

    def name_columns(self, columns: list[str] | None) -> None:
        """Set the names of the inputs, by which those of a forecast are put in order; None: no names."""
        self._origin = _conversion.Origin("array", None, columns)

    def append_rows(self, who: str, X: Any, times: int, later: LaterTimes) -> None:
        """Set the rows after the first ``times`` to rows X (steps, k) for later times."""
        X, steps = order_columns(who, "X", X, self._origin.columns), later.steps
        rows, origin = _conversion.read_array(who, X, "X")
        if later.index is not None and origin.index is not None:
            check_same_labels(who, {"the forecast": later.index, "X": origin.index})
        rows = _checks.check_inputs(who, rows.to(self.X), columns=self.states, empty=True)
        if len(rows) != steps:
            raise _exceptions.ShapeError(
                f"{who}: X must have {steps} rows, one for each step, got {len(rows)}."
            )
        self.X = torch.cat((self.X[:times], rows))

    def block(self, times: int) -> Block:
        """Return the matrices: X[t] maps the coefficients to the observation at time t."""
        if times > len(self.X):
            raise _exceptions.ShapeError(
                f"Regression: X has {len(self.X)} rows, {times} are needed: as many as the series and "
                f"the forecast have steps. A forecast takes those after the series as its argument X."
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

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices; the variances of the coefficients grow with the gaps."""
        block = self.block(len(gaps))
        return Block(block.A, block.B, gaps[:, None, None] * block.Q, *block[3:])

    def check_index(self, who: str, index: Any) -> None:
        """Raise an OptionError if the rows of X have other labels than the series."""
        own, shared = self._origin.index, min(len(index), len(self.X))
        if own is None:
            return
        left_out = find_left_out(index, own)
        if left_out is not None:
            raise _exceptions.OptionError(
                f"{who}: X of Regression has no row for {left_out}. It needs rows for all steps of the "
                f"series, with any numbers where y has no value."
            )
        check_same_labels(who, {"y": index[:shared], "X": own[:shared]})

    def config(self) -> dict[str, Any]:
        """Return whether the coefficients vary, and the names of the inputs; X is saved as a tensor."""
        columns = self._origin.columns or ()
        has_names = len(columns) > 0 and all(isinstance(name, str) for name in columns)
        return {"wandering": self.wandering, **({"columns": list(columns)} if has_names else {})}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a component with the inputs of the file."""
        named = {"columns": TEXTS} if "columns" in config else {}
        check_entries(config, {"wandering": FLAG, **named}, f"the component {cls.__name__}")
        made = cls(tensors["X"], 1.0 if config["wandering"] else None)
        made.name_columns(config.get("columns"))
        return made


@contextlib.contextmanager
def use_later_inputs(who: str, component: Component, X: Any, times: int, later: LaterTimes) -> Iterator[None]:
    """Give the regressions of a model rows for the times after the data, as long as the context lasts.

    Args:
        who: Name of the method, for messages.
        component: The component of the model.
        X: (steps, k), the rows of the only regression; a dictionary of them by label; or None: nothing is
            changed.
        times: Steps of the data.
        later: The times after them.
    """
    if X is None:
        yield
        return
    parts = component.components if isinstance(component, Sum) else [component]
    labels = component.labels if isinstance(component, Sum) else [component.label]
    found = {name: part for name, part in zip(labels, parts, strict=True) if isinstance(part, Regression)}
    if not found or (not isinstance(X, Mapping) and len(found) > 1):
        hint = f": pass a dictionary with the names {', '.join(found)}." if found else "."
        raise _exceptions.OptionError(f"{who}: X is for one Regression, and the model has {len(found)}{hint}")
    given = X if isinstance(X, Mapping) else {next(iter(found)): X}
    before = {name: part.X for name, part in found.items()}
    try:
        for name, rows in given.items():
            if name not in found:
                raise _errors.unknown_option(who, "X", name, list(found))
            found[name].append_rows(who, rows, times, later)
        yield
    finally:
        for name, part in found.items():
            part.X = before[name]
