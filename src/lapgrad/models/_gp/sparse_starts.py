"""A second start of sparse Gaussian process regression, from an exact process fitted to some of the rows."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from lapgrad.models import _checks
from lapgrad.models._gp import starts as _starts
from lapgrad.models._gp.batched_loss import is_batchable
from lapgrad.models._gp.inducing_inputs import choose_rows
from lapgrad.models._model import Model
from lapgrad.models._scaling import StandardisedRegression
from lapgrad.models._training.result import FitResult
from lapgrad.models.gp_regression import GPRegression
from lapgrad.models.kernels.base import covariance
from lapgrad.ops.potrf import potrf
from lapgrad.ops.trsm import trsm

_ROWS, _COUNT = 250, 4
"""Rows of the exact process, and starts that race each other on them: less work than a few evaluations."""
_JITTER = 1e-6
"""Of the covariance of f at inducing inputs, relative to its mean."""


class WithSecondStart(StandardisedRegression, Model):
    """Sparse regression whose fit tries a second start before it says that it has converged."""

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        starts: int | None = None,
        generator: torch.Generator | int | None = 0,
        **options: Any,
    ) -> FitResult:
        """Learn the parameters: minimise ``loss()`` over those that require gradients.

        Args:
            optimizer: "lbfgs", or "adam" (for networks, and thousands of inducing inputs).
            starts: 1: learn from the parameters of the model only. Otherwise, if L-BFGS has converged, learn
                from a second start as well, and keep the better one: what an exact Gaussian process of 250
                rows has learned, and inducing inputs that are chosen by its kernel. (Not if ``steps``,
                ``callback`` or networks are given, nor if rows are on several processes or in files.)
            generator: Source of random numbers for the second start, or a seed; None: torch's own.
            **options: See ``Model.fit``, also for the result and for errors.
        """
        who = f"{type(self).__name__}.fit"
        _starts.check_count(who, starts)
        source = _checks.make_generator(who, generator, torch.device("cpu"))
        fit = functools.partial(super().fit, optimizer, **options)
        is_limited = any(options.get(name) is not None for name in ("steps", "callback", "resume"))
        is_alone = starts == 1 or optimizer != "lbfgs" or is_limited
        if is_alone or not self.has_all_data() or not is_batchable(self):
            return fit()
        inputs, outputs = self._scale_inputs(self.X), self._scale_targets(self.y)
        exact = make_exact(self, inputs, outputs, source)
        if not _starts.has_learned_numbers(exact):
            return fit()
        initial = _starts.draw_starts(exact, _COUNT + 1, source)[1:]

        def move() -> None:
            _starts.set_parameters(exact, _starts.find_best_start(exact, initial))
            copy_parameters(exact, self, inputs, source)

        return _starts.fit_again(self, fit, move, only_if_converged=True)


def make_exact(
    model: Any, inputs: Tensor, outputs: Tensor, generator: torch.Generator | None
) -> GPRegression:
    """Return exact regression with some rows of a sparse model in its units, and a copy of its kernel.

    Parameters that are fixed in the sparse model are fixed here, too.
    """
    rows = torch.randperm(len(inputs), generator=generator)[:_ROWS].to(inputs.device)
    exact = GPRegression(
        inputs[rows],
        outputs[rows],
        copy.deepcopy(model.kernel),
        noise_var=model.noise_var.item(),
        noise_floor=model.noise_floor.item(),
        mean=model.mean,
        normalise=False,
    )
    for name in ("constant", "slope"):
        if hasattr(model, f"raw_{name}"):
            exact.get_parameter(f"raw_{name}").requires_grad_(
                model.get_parameter(f"raw_{name}").requires_grad
            )
    exact.raw_noise_var.requires_grad_(model.raw_noise_var.requires_grad)
    return exact


@torch.no_grad()
def copy_parameters(
    exact: GPRegression, model: Any, inputs: Tensor, generator: torch.Generator | None
) -> None:
    """Give a sparse model the hyper-parameters of an exact one, and inducing inputs chosen by its kernel.

    The variance that the inducing inputs do not explain is added to the noise, because with less noise the
    bound is steep.
    """
    model.kernel.load_state_dict(exact.kernel.state_dict())
    for name in ("constant", "slope"):
        if hasattr(model, f"raw_{name}"):
            model.get_parameter(f"raw_{name}").copy_(exact.get_parameter(f"raw_{name}"))
    if model.raw_inducing.requires_grad:
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        source = torch.Generator(inputs.device).manual_seed(seed)
        chosen = choose_rows(inputs, len(model.inducing), "greedy", source, model.kernel)
        if chosen.shape == model.inducing.shape:
            model.inducing = chosen
    if model.raw_noise_var.requires_grad:
        model.noise_var = exact.noise_var + _measure_unexplained(model, inputs[: 4 * _ROWS])


def _measure_unexplained(model: Any, inputs: Tensor) -> Tensor:
    """Return the mean variance of f at inputs (n, d) given f at the inducing inputs."""
    variance = model.kernel.diag(inputs).mean()
    A = covariance(model.kernel, model.inducing, _JITTER * variance, lower_only=True)
    V = trsm(potrf(A, overwrite=True), model.kernel(model.inducing, inputs))
    return (variance - V.square().sum(0).mean()).clamp_min(0.0)
