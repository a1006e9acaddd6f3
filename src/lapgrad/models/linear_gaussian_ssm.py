"""State space models of time series: a sum of components, observed with noise.

    h[0] ~ N(m, P),  h[t+1] ~ N(A[t] h[t] + a[t], Q[t]),  y[t] ~ N(B[t] h[t] + b[t], R[t])

The components define A, B, Q and the prior; R is the noise of the model. States with a flat prior are treated
exactly (``_state_space/diffuse.py``).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.distributed.group import Group, as_group
from lapgrad.distributed.losses import sum_loss
from lapgrad.fused import _series
from lapgrad.fused.kalman_nll import has_joint_kernel
from lapgrad.models import _checks
from lapgrad.models._arrays import conversion as _conversion
from lapgrad.models._model import Model
from lapgrad.models._parameters import Value
from lapgrad.models._prediction import Prediction
from lapgrad.models._products import multiply
from lapgrad.models._state_space import diffuse as _diffuse
from lapgrad.models._state_space import inference as _inference
from lapgrad.models._state_space import likelihood as _likelihood
from lapgrad.models._state_space import reading as _reading
from lapgrad.models._state_space import starts as _starts
from lapgrad.models._state_space import time_series as _time_series
from lapgrad.models._state_space.covariance import Covariance, make_noise
from lapgrad.models._state_space.forecasting_model import ForecastingModel
from lapgrad.models._state_space.matrices import Matrices, follow_exactly, set_covariance
from lapgrad.models._state_space.named_model import NamedModel
from lapgrad.models._state_space.names import list_descriptors
from lapgrad.models._state_space.plotted_model import PlottedModel
from lapgrad.models._state_space.search import SearchLimits, fit_series
from lapgrad.models._state_space.spread_series import SharedEvaluation, gather_series, read_shared, run_shared
from lapgrad.models._storage.entries import FLAG, OPTIONAL_NUMBER, PART, TEXT, check_entries
from lapgrad.models._training.adam import Rate
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.result import FitResult
from lapgrad.models.components.base import Block, Component, Sum, describe_component, make_component
from lapgrad.models.criteria.kalman_filter import Filtered
from lapgrad.models.criteria.kalman_smoother import Smoothed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: The entries of the description in a file.
_ENTRIES = {
    "component": PART,
    "noise": TEXT,
    "without_noise": FLAG,
    "diffuse_variance": OPTIONAL_NUMBER,
    "single": FLAG,
    "vector": FLAG,
}


_LBFGS_STEPS = 1000

_TOO_GOOD = 10.0
"""Nats per observation that no fit gains unless the likelihood has no maximum."""


class LinearGaussianSSM(NamedModel, ForecastingModel, PlottedModel, Model):
    """A linear Gaussian state space model of one or several series, learned by maximum likelihood.

    Args:
        y: (T,), one series; (T, p), one of p values at each time; (N, T, p), N series of one model; or a
            list of series (T_i,) or (T_i, p) of different length. NaN: missing. Tensors, arrays of NumPy, or
            a Series or DataFrame of pandas: forecasts are then objects of the same kind, and continue its
            index.
        component: The model of the series, such as ``LocalLevel() + Seasonal(12)``; an int:
            ``LinearDynamics`` with that many states, all matrices learned. It becomes part of the model (not
            a copy).
        noise_var: Covariance R of the noise of the observations: a number, (p,) or (p, p); None: chosen by
            the data; 0: no noise but that of the components. Learned.
        noise: "full": R may be any covariance; "diagonal".
        diffuse_variance: None: diffuse states have a flat prior, which is treated exactly. A number: they
            have a proper prior of this variance.
        times: (T,), when a single series was observed: increasing numbers or dates; None: the index of an
            object of pandas, else regular steps. Steps that are left out of a regular grid are missing
            observations. Other times are irregular: components are then those in continuous time, with
            variances per unit of time (1 of numbers, the median gap of dates).
        group: Processes that each have their own series, and learn together (``distributed.Group``): the
            loss is that of all series; forecasts and states are those of the own ones. None: one process.

    The hyper-parameters have the names of ``hyperparameters()``, such as ``noise_var``,
    ``trend.slope_variance`` and ``seasonal.variance``: ``set_values``, ``fix`` and ``free`` take them.

    Attributes:
        component: The component; its hyper-parameters are learned.
        noise: The covariance of the noise (``Covariance``), or None.
        lengths: (N,), the number of steps of each series.

    Raises:
        DTypeError, ShapeError, OptionError: The arguments do not fit.
        NonFiniteError: y has an infinity; or nothing but NaN.
        DomainError: There are too few observations to determine the diffuse states of a series.

    Example:
        >>> import torch
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
    gaps: Tensor | None
    may_have_nan = frozenset({"y"})
    reads_arrays = True

    def __init__(
        self,
        y: Any,
        component: Component | int,
        *,
        noise_var: Value | None = None,
        noise: str = "full",
        diffuse_variance: float | None = None,
        times: Any = None,
        group: Group | ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        self.group = as_group(who, group)
        given = read_shared(self.group, functools.partial(_reading.read_series, who, y, times))
        series = given.series
        p = series.values.shape[-1]
        if isinstance(component, int) and not isinstance(component, bool):
            from lapgrad.models.components.learned import LinearDynamics

            component = LinearDynamics(component, p, generator=0)
        if not isinstance(component, Component):
            kind = _checks.describe_kind(component)
            raise _exceptions.OptionError(f"{who}: component must be a Component, got {kind}.")
        if component.observations != p:
            raise _exceptions.ShapeError(
                f"{who}: y has {p} values at each time, the component explains {component.observations}."
            )
        if given.origin.index is not None:
            component.check_index(who, given.origin.index)
        if noise not in ("full", "diagonal"):
            raise _errors.unknown_option(who, "noise", noise, ("full", "diagonal"))
        if diffuse_variance is not None and not diffuse_variance > 0:
            raise _exceptions.OptionError(f"{who}: diffuse_variance must be > 0, got {diffuse_variance}.")
        self.single, self.vector = series.single, series.vector
        self._start: int | None = None
        self.register_buffer("y", series.values)
        self.register_buffer("lengths", series.lengths)
        self.register_buffer("gaps", None if given.gaps is None else given.gaps.to(series.values))
        self.origin, self.labels = given.origin, given.labels
        self.component, self.diffuse_variance, self.noise_form = component, diffuse_variance, noise
        known = series.values if self.group is None else gather_series(who, series.values, self.group)
        variances = _time_series.compute_variances(known)
        facts = _starts.collect_facts(known, float(variances.mean()), component.list_periods())
        component.start_from(facts)
        scale = min(0.5, 0.3 * facts.step_variance / facts.variance)
        self.noise: Covariance | None = make_noise(who, noise_var, scale * variances, noise)
        held = (*self.parameters(), *component.buffers())
        if any(t.dtype != self.y.dtype or t.device != self.y.device for t in held):
            self.to(dtype=self.y.dtype, device=self.y.device)
        with torch.no_grad():
            matrices = self.matrices()
            self._diffuse = self._choose_diffuse(matrices.block, known, facts.variance)
            if not _diffuse.sees_all(matrices.block, self.y, self._diffuse.positions):
                self._check_diffuse()

    @property
    def noise_var(self) -> Tensor:
        """Covariance R of the noise: (p, p), or a number for a series of numbers."""
        p = self.y.shape[-1]
        R = self.y.new_zeros(p, p) if self.noise is None else self.noise.matrix()
        return R[0, 0] if self.vector else R

    @noise_var.setter
    def noise_var(self, value: Value) -> None:
        if self.noise is None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}: the model was made without noise (noise_var=0): make one with noise."
            )
        R, p = torch.as_tensor(value, dtype=torch.float64), self.y.shape[-1]
        matrix = torch.diag(R.expand(p)) if R.dim() < 2 else R
        self.noise.set_matrix(matrix, f"{type(self).__name__}: noise_var")

    def matrices(self, times: int | None = None) -> Matrices:
        """Return the matrices for the times 0, ..., times - 1 (None: the times of the data)."""
        times = self.y.shape[1] if times is None else times
        if self.gaps is None:
            block = self.component.block(times)
        else:
            later = self.gaps[-1:].expand(max(0, times - len(self.gaps)))
            block = self.component.block_between(torch.cat((self.gaps, later))[:times])
        p = self.y.shape[-1]
        R = self.y.new_zeros(p, p) if self.noise is None else self.noise.matrix()
        if self.diffuse_variance is not None and any(self.component.diffuse):
            flags = torch.tensor(self.component.diffuse, dtype=R.dtype, device=R.device)
            P = block.P + self.diffuse_variance * torch.diag(flags)
            block = set_covariance(block, P)
        return Matrices(block, R[None] if block.R is None else R + block.R)

    def _choose_diffuse(self, block: Block, y: Tensor, variance: float) -> _diffuse.DiffuseStates:
        flags = self.component.diffuse if self.diffuse_variance is None else ()
        positions = [i for i, flag in enumerate(flags) if flag]
        return _diffuse.choose_prior(block, positions, y, variance)

    def _check_diffuse(self) -> None:
        """Raise a ``DomainError`` if the observations do not determine the diffuse states of a series."""
        if self.y.is_cuda and self._diffuse.positions:
            self._start = self._count_diffuse_steps()
        if self.y.is_cuda or not self._diffuse.positions:
            return
        matrices = self.matrices().to(torch.float64)
        try:
            _likelihood.compute_log_likelihood(matrices, self.y.double(), self._diffuse)
        except _exceptions.DomainError:
            self._count_diffuse_steps()
            raise
        except _exceptions.LapgradError:
            return  # for reasons that depend on parameters, which a fit or the user will change

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
        if self.group is None:
            return -self.log_likelihood().sum()
        return sum_loss(self.group, lambda: -self.log_likelihood().sum(), list(self.parameters()))

    def log_likelihood(self) -> Tensor:
        """Return log p(y) of each series of this process: (N,), or a number for one series."""
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
        lr: float | Rate | None = None,
        tolerance: float = 1e-6,
        progress: bool = False,
        callback: Callback | None = None,
        resume: dict[str, Any] | None = None,
    ) -> FitResult:
        """Learn the parameters: maximise the likelihood over those that require gradients.

        L-BFGS has converged when the loss and its gradient say so, and when no other start that is tried
        then, among them variances that have become nearly zero, ends at a better point.

        Args:
            optimizer: "lbfgs", or "adam" (for networks).
            steps: Evaluations of the loss, at most; None: 1000 of L-BFGS, 1000 of Adam.
            lr: Learning rate of Adam (None: 0.05), or a function that returns the rate of a step, given its
                number from 0 on; the length of the first step of L-BFGS (None: 1).
            tolerance: Stop when the loss changes by less than this, relative to its magnitude (at least 1, at
                most 100): in one move of L-BFGS, if the gradient promises no more either, in 50 steps of
                Adam. 0: never.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called after each step with its number and the loss; True stops the fit.
            resume: The result of ``training_state`` after a fit by Adam, which is continued.

        Returns:
            The loss reached, its history, and why the fit stopped.

        Raises:
            FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
                parameters are then those of the last step that was good.
            OptionError: An argument is not one of those above, or there is nothing to learn.

        Warns:
            FitWarning: The likelihood has no maximum: the components follow the series exactly, or a cycle
                that the data do not have has faded.
        """
        _checks.check_fit_options(type(self).__name__, tolerance, lr, callback)
        learned = [p for p in self.parameters() if p.requires_grad and p.numel()]
        numbers = _starts.describe_numbers(list_descriptors(self), learned)
        is_plain = optimizer == "lbfgs" and resume is None
        has_priors = any(module.__dict__.get("_priors") for module in self.modules())
        if callable(lr) or not is_plain or not numbers or has_priors:
            return super().fit(
                optimizer,
                steps=steps,
                lr=lr,
                tolerance=tolerance,
                progress=progress,
                callback=callback,
                resume=resume,
            )
        evaluate: Callable[[Any], tuple[float, Any]] = _likelihood.LossEvaluation(self.loss, learned)
        if self.group is not None:
            evaluate = SharedEvaluation(self.group, self.loss, learned)
        elif has_joint_kernel(self.y) and type(self).loss is LinearGaussianSSM.loss:
            regular = self.component if self.gaps is None else None
            evaluate = _likelihood.make_evaluation(
                self.matrices, self.y, self._diffuse, learned, numbers, regular
            )
        search = functools.partial(
            fit_series,
            type(self).__name__,
            learned,
            evaluate,
            functools.partial(_starts.propose_start, numbers),
            functools.partial(_starts.shorten_way, numbers),
            functools.partial(_starts.rescale_variances, numbers, self._count_observations()),
            SearchLimits(
                _LBFGS_STEPS if steps is None else steps,
                float(lr or 1.0),
                tolerance,
                all(number.is_variance for number in numbers),
            ),
        )
        result = run_shared(self.group, learned, search, progress, callback)
        degeneracy = self.component.find_degeneracy()
        # Looking at all variances takes longer than some evaluations: only if the fit is too good to be true.
        if result.history[0] - result.loss > _TOO_GOOD * self.y.numel() and self._follows_exactly():
            degeneracy = (
                "the components follow the series up to rounding: the likelihood has no maximum, and the "
                "variances say nothing."
            )
        if degeneracy is not None:
            warnings.warn(f"{type(self).__name__}.fit: {degeneracy}", _exceptions.FitWarning, stacklevel=2)
        return result

    @torch.no_grad()
    def _follows_exactly(self) -> bool:
        return follow_exactly(self.matrices(), self.y)

    def _count_observations(self) -> int:
        """Return the number of observations, on all processes, less those that determine diffuse states."""
        seen = int((~self.y.isnan()).sum()) - len(self._diffuse.positions) * len(self.y)
        total = torch.tensor(float(seen), dtype=torch.float64)
        if self.group is not None:
            self.group.sum_tensors([total])
        return int(total)

    @torch.no_grad()
    def filter(self) -> Filtered:
        """Return moments of the states, given the observations so far.

        Returns:
            (N, T, ...), or (T, ...) for one series. As long as the observations do not determine all diffuse
            states, moments and log likelihoods do not exist: they are NaN.
        """
        run, flat = self._run_filter(0)
        found = _inference.filter_states(run, flat, self._count_diffuse_steps())
        return Filtered(*[part[0] if self.single else part for part in found])

    @torch.no_grad()
    def smooth(self) -> Smoothed:
        """Return moments of the states, given all observations: (N, T, ...), or (T, ...) for one series.

        At times after the end of a series they are forecasts.
        """
        found = _inference.smooth_states(*self._run_filter(0))
        return Smoothed(*[part[0] if self.single else part for part in found])

    def residuals(self) -> Any:
        """Return one-step prediction errors in units of their standard deviations, in the shape of the data.

        They are independent N(0, 1) if the model is right, and NaN where nothing is observed, or nothing
        predicted because the diffuse states are not determined yet. If there are several values at one time,
        each is predicted given those before it.
        """
        return self._write(self._shape_values(self.compute_residuals()))

    @torch.no_grad()
    def compute_residuals(self) -> Tensor:
        """Return ``residuals`` as a tensor (N, T, p)."""
        run, flat = self._run_filter(0)
        found = _inference.filter_states(run, flat, self._count_diffuse_steps())
        return _inference.standardise_residuals(found, flat)

    def _run_filter(self, steps_ahead: int) -> tuple[_diffuse.FilterRun, tuple[Tensor, ...]]:
        """Run the filter over the data and ``steps_ahead`` times after them; also return its operands."""
        y = torch.nn.functional.pad(self.y, (0, 0, 0, steps_ahead), value=torch.nan)
        flat, batch = self._flatten(self.matrices(y.shape[1]), y)
        return _diffuse.run_filter(type(self).__name__, batch, flat, self._diffuse, y.shape[1]), flat

    def _shape_values(self, values: Tensor) -> Tensor:
        """Return values (N, T, p) in the shape of the data."""
        values = values[..., 0] if self.vector else values
        return values[0] if self.single else values

    def _shape_prediction(self, mean: Tensor, covariance: Tensor) -> Prediction:
        """Return a prediction in the shapes of the data."""
        if self.vector:
            mean, covariance = mean[..., 0], covariance[..., 0, 0]
        return Prediction(mean[0], covariance[0]) if self.single else Prediction(mean, covariance)

    def _write(self, values: Tensor) -> Any:
        """Return values in the shape of the data as an object of the kind of the data."""
        return _conversion.write_array(values, self.origin)

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
            shaped = self._shape_prediction(value, multiply(B, covariance[..., own, own], B.mT))
            answers.append(Prediction(*map(self._write, shaped)))
            before += part.states
        return answers

    def summary(self) -> Any:
        """Return a ``SeriesSummary``: standard errors, information criteria, tests of the residuals.

        Standard errors are those of the exact Hessian of the likelihood at the present parameters. A variance
        that is nearly zero lies at the bound of its range, and has none.
        """
        return self.summarise(self.compute_residuals(), len(self._diffuse.positions) * len(self.y))

    def config(self) -> dict[str, Any]:
        """Return the description for files."""
        return {
            "component": describe_component(self.component),
            "noise": self.noise_form,
            "without_noise": self.noise is None,
            "diffuse_variance": self.diffuse_variance,
            "single": self.single,
            "vector": self.vector,
            **_reading.describe_labels(self.origin, self.labels),
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
        gaps = tensors.get("gaps")
        model = cls(
            values[0] if config["single"] else values,
            make_component(config["component"], own, modules),
            noise_var=0.0 if config["without_noise"] else None,
            noise=config["noise"],
            diffuse_variance=config["diffuse_variance"],
            times=None if gaps is None else torch.cat((gaps.new_zeros(1), gaps[:-1].cumsum(0))).cpu().numpy(),
        )
        model.origin, model.labels = _reading.restore_labels(config, model.origin, model.labels)
        return model
