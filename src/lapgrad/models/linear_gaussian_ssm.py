"""State space models of time series: a sum of components, observed with noise.

    h[0] ~ N(m, P),  h[t+1] ~ N(A[t] h[t] + a[t], Q[t]),  y[t] ~ N(B[t] h[t] + b[t], R[t])

The components define A, B, Q and the prior; R is the noise of the model. States with a flat prior are treated
exactly (``_state_space/diffuse.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.fused import _series
from lapgrad.fused.kalman_nll import has_joint_kernel, kalman_nll
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _checks, _plots, _sampling
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value
from lapgrad.models._prediction import Prediction
from lapgrad.models._products import multiply
from lapgrad.models._state_space import diffuse as _diffuse
from lapgrad.models._state_space import likelihood as _likelihood
from lapgrad.models._state_space import time_series as _time_series
from lapgrad.models._state_space.covariance import Covariance
from lapgrad.models._state_space.matrices import Matrices
from lapgrad.models._state_space.names import list_descriptors
from lapgrad.models._state_space.search import SearchLimits, fit_series
from lapgrad.models._state_space.starts import collect_facts, describe_numbers, propose_start
from lapgrad.models._storage.entries import FLAG, OPTIONAL_NUMBER, PART, TEXT, check_entries
from lapgrad.models._training.fitting import Callback, FitResult
from lapgrad.models.components.base import Block, Component, Sum, describe_component, make_component
from lapgrad.models.criteria.kalman_filter import Filtered
from lapgrad.models.criteria.kalman_smoother import Smoothed, smooth_back
from lapgrad.ops.potrf import potrf
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.trsm import trsm

#: The entries of the description in a file.
_ENTRIES = {
    "component": PART,
    "noise": TEXT,
    "without_noise": FLAG,
    "diffuse_variance": OPTIONAL_NUMBER,
    "single": FLAG,
    "vector": FLAG,
}


_LBFGS_STEPS = 500


class LinearGaussianSSM(Model):
    """A linear Gaussian state space model of one or several series, learned by maximum likelihood.

    Args:
        y: (T,), one series; (T, p), one of p values at each time; (N, T, p), N series of one model; or a
            list of series (T_i,) or (T_i, p) of different length. NaN: missing.
        component: The model of the series, such as ``LocalLevel() + Seasonal(12)``; an int:
            ``LinearDynamics`` with that many states, all matrices learned. It becomes part of the model (not
            a copy).
        noise_var: Covariance R of the noise of the observations: a number, (p,) or (p, p); None: chosen by the
            data; 0: no noise but that of the components. Learned.
        noise: "full": R may be any covariance; "diagonal".
        diffuse_variance: None: diffuse states have a flat prior, which is treated exactly. A number: they
            have a proper prior of this variance.

    Attributes:
        component: The component; its hyper-parameters are learned.
        noise: The covariance of the noise (``Covariance``), or None.
        lengths: (N,), the number of steps of each series.

    Raises:
        DTypeError, ShapeError, OptionError: The arguments do not fit.
        NonFiniteError: y has an infinity; or nothing but NaN.
        DomainError: There are too few observations to determine the diffuse states of a series.

    Example:
        >>> from lapgrad.models import LinearGaussianSSM
        >>> from lapgrad.models.components import LocalLevel
        >>> y = torch.tensor([1.0, 1.2, torch.nan, 0.9, 1.1, 1.3, 1.0], dtype=torch.float64)
        >>> model = LinearGaussianSSM(y, LocalLevel(0.01), noise_var=0.04)
        >>> mean, variance = model.forecast(2)
        >>> mean
        tensor([1.0896, 1.0896], dtype=torch.float64)
    """

    y: Tensor
    lengths: Tensor
    may_have_nan = frozenset({"y"})

    def __init__(
        self,
        y: Tensor | Sequence[Tensor],
        component: Component | int,
        *,
        noise_var: Value | None = None,
        noise: str = "full",
        diffuse_variance: float | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        series = _time_series.pad_series(who, y)
        p = series.values.shape[-1]
        if isinstance(component, int) and not isinstance(component, bool):
            from lapgrad.models.components.learned import LinearDynamics

            component = LinearDynamics(component, p, generator=0)
        if not isinstance(component, Component):
            raise _errors.OptionError(
                f"{who}: component must be a Component, got {type(component).__name__}."
            )
        if component.observations != p:
            raise _errors.ShapeError(
                f"{who}: y has {p} values at each time, the component explains {component.observations}."
            )
        if noise not in ("full", "diagonal"):
            raise _errors.unknown_option(who, "noise", noise, ("full", "diagonal"))
        if diffuse_variance is not None and not diffuse_variance > 0:
            raise _errors.OptionError(f"{who}: diffuse_variance must be positive, got {diffuse_variance}.")
        self.single, self.vector = series.single, series.vector
        self._start: int | None = None
        self.register_buffer("y", series.values)
        self.register_buffer("lengths", series.lengths)
        self.component, self.diffuse_variance, self.noise_form = component, diffuse_variance, noise
        variances = _time_series.compute_variances(series.values)
        facts = collect_facts(series.values, float(variances.mean()), component.list_periods())
        component.start_from(facts)
        scale = min(0.5, 0.3 * facts.step_variance / facts.variance)
        self.noise = self._make_noise(who, noise_var, scale * variances, noise)
        self.to(dtype=series.values.dtype, device=series.values.device)
        with torch.no_grad():
            self._diffuse = self._choose_diffuse(float(variances.mean()))
            self._check_diffuse()

    @staticmethod
    def _make_noise(who: str, noise_var: Value | None, variances: Tensor, form: str) -> Covariance | None:
        p = len(variances)
        if noise_var is None:
            return Covariance(variances, diagonal=form == "diagonal")
        value = torch.as_tensor(noise_var, dtype=torch.float64)
        if not bool(value.any()):
            return None
        if value.shape not in ((), (p,), (p, p)):
            raise _errors.ShapeError(
                f"{who}: noise_var must be a number, or have shape ({p},) or ({p}, {p}), got "
                f"{tuple(value.shape)}."
            )
        return Covariance(value.expand(p) if value.dim() == 0 else value, diagonal=form == "diagonal")

    @property
    def noise_var(self) -> Tensor:
        """Covariance R of the noise: (p, p), or a number for a series of numbers."""
        p = self.y.shape[-1]
        R = self.y.new_zeros(p, p) if self.noise is None else self.noise.matrix()
        return R[0, 0] if self.vector else R

    def matrices(self, times: int | None = None) -> Matrices:
        """Return the matrices for the times 0, ..., times - 1 (None: the times of the data)."""
        times = self.y.shape[1] if times is None else times
        block = self.component.block(times)
        p = self.y.shape[-1]
        R = self.y.new_zeros(p, p) if self.noise is None else self.noise.matrix()
        if self.diffuse_variance is not None and any(self.component.diffuse):
            flags = torch.tensor(self.component.diffuse, dtype=R.dtype, device=R.device)
            P = block.P + self.diffuse_variance * torch.diag(flags)
            block = Block(*block[:4], P, *block[5:])
        return Matrices(block, R[None] if block.R is None else R + block.R)

    def _choose_diffuse(self, variance: float) -> _diffuse.DiffuseStates:
        flags = self.component.diffuse if self.diffuse_variance is None else ()
        positions = [i for i, flag in enumerate(flags) if flag]
        return _diffuse.choose_scales(self.matrices().block.B, positions, variance)

    def _check_diffuse(self) -> None:
        """Raise a ``DomainError`` if the observations do not determine the diffuse states of a series."""
        if not self._diffuse.positions:
            return
        if self.y.is_cuda:
            self._start = self._count_diffuse_steps()
            return
        matrices = self.matrices()
        try:
            _likelihood.compute_log_likelihood(matrices.to(torch.float64), self.y.double(), self._diffuse)
        except _errors.DomainError:
            self._count_diffuse_steps()
            raise
        except _errors.LapgradError:
            # Other reasons depend on the values of the parameters, which a fit or the user will change.
            return

    def _count_diffuse_steps(self) -> int:
        """Return the number of steps after which the observations determine all diffuse states."""
        if self._start is None:
            flat, batch = self._flatten(self.matrices(), self.y)
            self._start = _diffuse.count_diffuse_steps(type(self).__name__, batch, flat, self._diffuse)
        return self._start

    def _flatten(self, matrices: Matrices, y: Tensor) -> tuple[tuple[Tensor, ...], torch.Size]:
        return _series.prepare_operands(type(self).__name__, **matrices.list_operands(y))

    def loss(self) -> Tensor:
        """Return -log p(y), summed over the series.

        With diffuse states this is the diffuse likelihood of Durbin and Koopman.

        Raises:
            NotPositiveDefiniteError: The covariance of an observation, given those before it, is not positive
                definite; names series and step.
        """
        return -self.log_likelihood().sum()

    def log_likelihood(self) -> Tensor:
        """Return log p(y) of each series: (N,), or a number for one series."""
        matrices = self.matrices()
        value = self._compute_log_likelihood(matrices, self.y)
        return value[0] if self.single else value

    def _compute_log_likelihood(self, matrices: Matrices, y: Tensor) -> Tensor:
        if y.is_cuda and self._diffuse.positions:
            who = type(self).__name__
            return _likelihood.compute_log_likelihood_in_parts(
                who, matrices, y, self._diffuse, self._count_diffuse_steps()
            )
        return _likelihood.compute_log_likelihood(matrices, y, self._diffuse)

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        steps: int | None = None,
        lr: float | None = None,
        tolerance: float = 1e-6,
        progress: bool = False,
        callback: Callback | None = None,
    ) -> FitResult:
        """Learn the parameters: maximise the likelihood over those that require gradients.

        L-BFGS has converged when the loss and its gradient say so, and when no other start that is tried then, among
        them variances that have become nearly zero, ends at a better point.

        Args:
            optimizer: "lbfgs", or "adam" (for networks).
            steps: Evaluations of the loss, at most; None: 500 of L-BFGS, 1000 of Adam.
            lr: Learning rate of Adam (None: 0.05); the length of the first step of L-BFGS (None: 1).
            tolerance: Stop when the loss changes by less than this, relative to its magnitude (at least 1, at most
                100): in one move of L-BFGS, if the gradient promises no more either, in 50 steps of Adam. 0: never.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called after each step with its number and the loss; True stops the fit.

        Returns:
            The loss reached, its history, and why the fit stopped.

        Raises:
            FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
                parameters are then those of the last step that was good.
            OptionError: An argument is not one of those above, or there is nothing to learn.
        """
        learned = [p for p in self.parameters() if p.requires_grad and p.numel()]
        numbers = describe_numbers(list_descriptors(self), learned)
        if optimizer != "lbfgs" or not numbers or not self._has_fast_evaluation():
            return super().fit(
                optimizer, steps=steps, lr=lr, tolerance=tolerance, progress=progress, callback=callback
            )
        evaluate = _likelihood.make_evaluation(self.matrices, self.y, self._diffuse, learned, numbers)
        return fit_series(
            type(self).__name__,
            learned,
            evaluate,
            functools.partial(propose_start, numbers),
            SearchLimits(_LBFGS_STEPS if steps is None else steps, 1.0 if lr is None else lr, tolerance),
            progress=progress,
            callback=callback,
        )

    def _has_fast_evaluation(self) -> bool:
        """Return whether the device has a kernel for values and gradients, and fits maximise the likelihood alone."""
        return has_joint_kernel(self.y) and type(self).loss is LinearGaussianSSM.loss and not self._has_priors()

    def _has_priors(self) -> bool:
        return any(module.__dict__.get("_priors") for module in self.modules())

    @torch.no_grad()
    def filter(self) -> Filtered:
        """Return moments of the states, given the observations so far.

        Returns:
            (N, T, ...), or (T, ...) for one series. As long as the observations do not determine all diffuse
            states, moments and log likelihoods do not exist: they are NaN.
        """
        run, (flat, _) = self._run_filter(0)
        start = self._count_diffuse_steps()
        T, first = len(run.steps), max(0, start - 1)
        found: list[tuple[Tensor, ...]] = []
        for t, step in enumerate(run.steps):
            if t < first:
                found.append(
                    tuple(torch.full_like(x, torch.nan) for x in (step.mean[..., 0], step.covariance) * 2)
                )
                continue
            filtered = _diffuse.integrate_out_diffuse(
                step.filtered_mean, step.filtered_covariance, step.information
            )
            before = run.steps[t - 1].information if t else step.information.new_zeros(step.information.shape)
            known = t > first or not start
            predicted = (
                _diffuse.integrate_out_diffuse(step.mean, step.covariance, before)
                if known
                else tuple(torch.full_like(x, torch.nan) for x in filtered)
            )
            found.append((*filtered, *predicted))
        parts = [torch.stack(part, 1) for part in zip(*found, strict=True)]
        values = _compute_log_likelihoods(flat, parts[2], parts[3])
        values[:, :first] = torch.nan if T and start else values[:, :first]
        return Filtered(*[part[0] if self.single else part for part in (*parts, values)])

    @torch.no_grad()
    def smooth(self) -> Smoothed:
        """Return moments of the states, given all observations: (N, T, ...), or (T, ...) for one series.

        At times after the end of a series they are forecasts.
        """
        run, (flat, _) = self._run_filter(0)
        steps = [(step.mean, step.covariance, step.seen) for step in run.steps]
        mean, covariance, cross, _ = smooth_back(flat, steps, flat[0].new_zeros(len(flat[0]), 0))
        G = run.information
        if mean.shape[-1] > 1:
            L, M = potrf(G[:, None, 1:, 1:]), mean[..., 1:]
            cross = cross + multiply(M[:, 1:], cho_solve(L, M[:, :-1].mT))
        mean, covariance = _diffuse.integrate_out_diffuse(mean, covariance, G[:, None])
        parts = (mean, covariance, cross, _diffuse.compute_nll(run).neg())
        return Smoothed(*[part[0] if self.single else part for part in parts])

    def _run_filter(
        self, steps_ahead: int
    ) -> tuple[_diffuse.FilterRun, tuple[tuple[Tensor, ...], torch.Size]]:
        """Run the filter over the data and ``steps_ahead`` times after them; also return its operands."""
        y = torch.nn.functional.pad(self.y, (0, 0, 0, steps_ahead), value=torch.nan)
        flat, batch = self._flatten(self.matrices(y.shape[1]), y)
        return _diffuse.run_filter(type(self).__name__, batch, flat, self._diffuse, y.shape[1]), (
            flat,
            batch,
        )

    @torch.no_grad()
    def forecast(self, steps: int, *, noise: bool = True) -> Prediction:
        """Return the distribution of the next observations of each series.

        Args:
            steps: How many times after the end of each series.
            noise: Predict observations; False: predict the signal without the noise R.

        Returns:
            mean (steps,) and variance (steps,) of one series of numbers; (steps, p) and covariance (steps,
            p, p) of one series of p values; with (N, ...) in front for several series.

        Raises:
            OptionError: steps is negative.
            ShapeError: A component with inputs has none for these times.
        """
        steps = _check_steps(f"{type(self).__name__}.forecast", steps)
        run, (flat, _) = self._run_filter(steps)
        after = _time_series.list_later_times(self.lengths, steps)
        predicted = [
            _diffuse.integrate_out_diffuse(step.mean, step.covariance, run.information)
            for step in run.steps[int(self.lengths.min()) :]
        ]
        n = flat[1].shape[-1]
        if not predicted:
            return self._shape_prediction(self.y.new_empty(len(self.y), 0, self.y.shape[-1]), None)
        first = int(self.lengths.min())
        m = torch.stack([mean for mean, _ in predicted], 1)
        P = torch.stack([covariance for _, covariance in predicted], 1)
        m = m.gather(1, (after - first)[..., None].expand(-1, -1, n))
        P = P.gather(1, (after - first)[..., None, None].expand(-1, -1, n, n))
        B, R = (_time_series.gather_times(X, after) for X in (flat[2], flat[4]))
        mean = multiply(B, m[..., None])[..., 0] + self._get_observation_offset(run, after)
        covariance = multiply(B, P, B.mT) + (R if noise else 0.0)
        return self._shape_prediction(mean, covariance)

    def _get_observation_offset(self, run: _diffuse.FilterRun, after: Tensor) -> Tensor | float:
        offset = self.matrices(len(run.steps)).block.observation_offset
        if offset is None:
            return 0.0
        flat = offset.expand(len(self.y), *offset.shape[-2:]) if offset.dim() == 2 else offset
        return _time_series.gather_times(flat, after)

    def _shape_prediction(self, mean: Tensor, covariance: Tensor | None) -> Prediction:
        """Return a prediction in the shapes of the data."""
        if covariance is None:
            covariance = mean.new_empty(*mean.shape, mean.shape[-1])
        if self.vector:
            mean, covariance = mean[..., 0], covariance[..., 0, 0]
        return Prediction(mean[0], covariance[0]) if self.single else Prediction(mean, covariance)

    @torch.no_grad()
    def sample(self, steps: int, count: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """Return draws of the next observations, given the data: each is one path, with its own states.

        Args:
            steps: How many times after the end of each series.
            count: How many paths.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, steps), with (N) before, and (p) after, for several series, and for several values.
        """
        who = f"{type(self).__name__}.sample"
        steps = _check_steps(who, steps)
        source = _checks.make_generator(who, generator, self.y.device)
        run, (flat, _) = self._run_filter(steps)
        _, A, B, Q, R, _, _, c = flat
        after = _time_series.list_later_times(self.lengths, steps)
        N, p = len(self.y), self.y.shape[-1]
        drawn = self.y.new_empty(N, count, steps, p)
        offset = self._get_observation_offset(run, after)

        def draw(mean: Tensor, covariance: Tensor) -> Tensor:
            """Return draws (N, count, k) for means (N, count, k) and covariances (N, k, k)."""
            noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=source)
            return mean + multiply(noise, _sampling.compute_root(covariance).mT)

        if steps:
            states = [
                _diffuse.integrate_out_diffuse(
                    run.steps[int(length)].mean[i],
                    run.steps[int(length)].covariance[i],
                    run.information[i],
                )
                for i, length in enumerate(self.lengths)
            ]
            h = draw(
                torch.stack([mean for mean, _ in states])[:, None].expand(N, count, -1),
                torch.stack([covariance for _, covariance in states]),
            )
        for k in range(steps):
            A_k, B_k, Q_k, R_k, c_k = (
                _time_series.gather_times(X, after[:, k : k + 1])[:, 0] for X in (A, B, Q, R, c)
            )
            drawn[:, :, k] = draw(multiply(h, B_k.mT), R_k)
            h = draw(multiply(h, A_k.mT) + c_k[:, None], Q_k)
        drawn = drawn + (offset if isinstance(offset, float) else offset[:, None])
        drawn = drawn[..., 0] if self.vector else drawn
        return drawn[0] if self.single else drawn

    @torch.no_grad()
    def decompose(self) -> list[Prediction]:
        """Return mean and variance of the contribution of each component, given all observations.

        They are in the order in which components were added, and have the shapes of the data.
        """
        found = self.smooth()
        mean, covariance = (x[None] if self.single else x for x in (found.mean, found.covariance))
        block = self.matrices().block
        parts = self.component.components if isinstance(self.component, Sum) else [self.component]
        answers, before = [], 0
        for part in parts:
            own = slice(before, before + part.states)
            B = block.B[..., own]
            value = multiply(B, mean[..., own, None])[..., 0]
            answers.append(self._shape_prediction(value, multiply(B, covariance[..., own, own], B.mT)))
            before += part.states
        return answers

    def plot(self, steps: int = 0, *, series: int = 0, times: Any = None, axes: Any = None) -> Any:
        """Plot the data of one series, the smoothed signal and a forecast, with 95% bands (needs matplotlib).

        Args:
            steps: Steps of the forecast.
            series: Which series.
            times: (T + steps,), coordinates of the time axis; None: 0, 1, 2, ...
            axes: Axes of matplotlib to draw into; None: new ones.

        Returns:
            The axes.
        """
        if self.y.shape[-1] > 1:
            raise _errors.ShapeError(f"{type(self).__name__}.plot: only series of one value at each time.")
        axes = _plots.get_axes(axes)
        length = int(self.lengths[series])
        x = torch.arange(length + steps) if times is None else torch.as_tensor(times)
        found, matrices = self.smooth(), self.matrices()
        mean, covariance = (v[None] if self.single else v for v in (found.mean, found.covariance))
        B = matrices.block.B.detach()
        signal = multiply(B, mean[..., None])[..., 0][series, :length, 0]
        offset = matrices.block.observation_offset
        if offset is not None:
            signal = signal + offset.detach().expand(len(self.y), self.y.shape[1], 1)[series, :length, 0]
        variance = multiply(B, covariance, B.mT)[series, :length, 0, 0]
        _plots.plot_points(axes, x[:length], self.y[series, :length, 0])
        _plots.plot_band(axes, x[:length], signal, variance, label="smoothed")
        if steps:
            ahead, spread = self.forecast(steps)
            if not self.single:
                ahead, spread = ahead[series], spread[series]
            ahead, spread = (ahead, spread) if self.vector else (ahead[..., 0], spread[..., 0, 0])
            _plots.plot_band(
                axes,
                x[length : length + steps],
                ahead,
                spread,
                label="forecast",
                colour=_plots.FORECAST_COLOUR,
            )
        axes.legend(frameon=False)
        return _plots.style_axes(axes)

    def config(self) -> dict[str, Any]:
        """Return the description for files."""
        return {
            "component": describe_component(self.component),
            "noise": self.noise_form,
            "without_noise": self.noise is None,
            "diffuse_variance": self.diffuse_variance,
            "single": self.single,
            "vector": self.vector,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the series that were saved."""
        check_entries(config, _ENTRIES)
        prefix = "component."
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        y = tensors["y"]
        series = [one[: int(length)] for one, length in zip(y, tensors["lengths"], strict=True)]
        values = [one[:, 0] for one in series] if config["vector"] else series
        return cls(
            values[0] if config["single"] else values,
            make_component(config["component"], own, modules),
            noise_var=0.0 if config["without_noise"] else None,
            noise=config["noise"],
            diffuse_variance=config["diffuse_variance"],
        )


def _check_steps(who: str, steps: int) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise _errors.OptionError(f"{who}: steps must be a number of steps, at least 0, got {steps!r}.")
    return steps


def _compute_log_likelihoods(flat: tuple[Tensor, ...], mean: Tensor, covariance: Tensor) -> Tensor:
    """Return log p(y[t] | y[0], ..., y[t-1]), (N, T), from predicted moments of the states."""
    y, _, B, _, R = flat[:5]
    there = ~y.isnan()
    seen = there.to(y.dtype)
    B = seen[..., None] * B
    S = multiply(B, covariance, B.mT) + seen[..., None] * seen[..., None, :] * R + torch.diag_embed(1 - seen)
    v = torch.where(there, y, 0.0) - multiply(B, mean[..., None])[..., 0]
    known = ~mean.isnan().any(-1)
    S = torch.where(known[..., None, None], S, torch.eye(S.shape[-1], dtype=S.dtype, device=S.device))
    L = potrf(S)
    z = trsm(L, v[..., None])[..., 0]
    value = -0.5 * (z.square().sum(-1) + seen.sum(-1) * math.log(2 * math.pi)) - sumlogdiag(L)
    return torch.where(known, value, torch.nan)
