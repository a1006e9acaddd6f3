"""State space models that forecast their series."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapgrad.models import _checks
from lapgrad.models._arrays import conversion as _conversion
from lapgrad.models._arrays.conversion import Origin
from lapgrad.models._prediction import Prediction
from lapgrad.models._state_space import inference as _inference
from lapgrad.models._state_space import reading as _reading
from lapgrad.models._state_space import time_series as _time_series
from lapgrad.models.components.base import Component
from lapgrad.models.components.structural import LaterTimes, use_later_inputs

if TYPE_CHECKING:
    from lapgrad.models._state_space.diffuse import FilterRun
    from lapgrad.models._state_space.matrices import Matrices


class ForecastingModel:
    """Mixed into a model with series, their labels and a filter."""

    y: Tensor
    lengths: Tensor
    gaps: Tensor | None
    labels: Any
    origin: Origin
    component: Component

    if TYPE_CHECKING:

        def matrices(self, times: int | None = None) -> Matrices: ...
        def _run_filter(self, steps_ahead: int) -> tuple[FilterRun, tuple[Tensor, ...]]: ...
        def _shape_values(self, values: Tensor) -> Tensor: ...
        def _shape_prediction(self, mean: Tensor, covariance: Tensor) -> Prediction: ...

    @torch.no_grad()
    def forecast(self, steps: int, *, X: Any = None, noise: bool = False) -> Prediction:
        """Return the distribution of what follows each series.

        Args:
            steps: How many times after the end of each series.
            X: (steps, k), the inputs of the ``Regression`` at these times, if it has no rows for them; a
                dictionary by label if there are several.
            noise: Predict observations, with the variance of the noise; else the signal, as ``predict`` of
                other models.

        Returns:
            mean (steps,) and variance (steps,) of one series of numbers; (steps, p) and covariance (steps,
            p, p) of one series of p values; with (N, ...) in front for several series. Of the kind of the
            data, with an index that continues theirs.

        Raises:
            OptionError: steps is negative.
            ShapeError: A component with inputs has none for these times.
        """
        who = f"{type(self).__name__}.forecast"
        steps = _time_series.check_steps(who, steps)
        _checks.check_flag(who, "noise", noise)
        with self.use_inputs(who, X, steps) as later:
            mean, covariance = self._forecast(steps, noise)
        found = self._shape_prediction(mean, covariance)
        return Prediction(*(_conversion.write_array(part, self.origin, later) for part in found))

    @contextlib.contextmanager
    def use_inputs(self, who: str, X: Any, steps: int) -> Iterator[Any]:
        """Give regressions the inputs X of the ``steps`` times after the data; yield the index of these."""
        # Labels without a regular step are continued by a guess, which says nothing about those of X.
        known = _conversion.extend_index(_reading.get_index(self.labels), steps)
        with use_later_inputs(who, self.component, X, self.y.shape[1], LaterTimes(steps, known)):
            yield _reading.get_index(_reading.continue_labels(self.labels, steps, self.gaps))

    def _forecast(self, steps: int, noise: bool) -> tuple[Tensor, Tensor]:
        run, flat = self._run_filter(steps)
        mean, covariance = _inference.forecast_observations(run, flat, self.lengths, steps, noise=noise)
        return mean + self._get_later_offset(len(run.steps), steps), covariance

    def _get_later_offset(self, times: int, steps: int) -> Tensor | float:
        offset = self.matrices(times).block.observation_offset
        if offset is None:
            return 0.0
        flat = offset.expand(len(self.y), *offset.shape[-2:]) if offset.dim() == 2 else offset
        return _time_series.gather_times(flat, _time_series.list_later_times(self.lengths, steps))

    @torch.no_grad()
    def sample(
        self,
        steps: int,
        count: int = 1,
        *,
        X: Any = None,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Any:
        """Return draws of what follows, given the data: each is one path, with its own states.

        Args:
            steps: How many times after the end of each series.
            count: How many paths.
            X: As for ``forecast``.
            noise: Draw observations, else the signal.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            (count, steps), with (N) before, and (p) after, for several series, and for several values.
        """
        who = f"{type(self).__name__}.sample"
        steps = _time_series.check_steps(who, steps)
        _checks.check_flag(who, "noise", noise)
        source = _checks.make_generator(who, generator, self.y.device)
        with self.use_inputs(who, X, steps):
            run, flat = self._run_filter(steps)
            offset = self._get_later_offset(len(run.steps), steps)
        drawn = _inference.draw_observations(run, flat, self.lengths, steps, count, source, noise=noise)
        drawn = self._shape_values(drawn + (offset if isinstance(offset, float) else offset[:, None]))
        return drawn if self.origin.kind == "tensor" else drawn.cpu().numpy()
