"""Where to start learning a Gaussian process: starts race each other, and the fit continues from the best."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from lapgrad import _exceptions
from lapgrad.models import _checks
from lapgrad.models._gp.batched_loss import BatchedLoss, is_batchable
from lapgrad.models._parameters import Hyperparameter, get_all_bounds, get_priors
from lapgrad.models._storage.distributions import move_distribution
from lapgrad.models._training.fitting import get_scales
from lapgrad.models._training.lbfgs import Point
from lapgrad.models._training.lockstep import Stage, race_searches
from lapgrad.models._training.result import FitResult

_SPREAD = 1.0
"""Standard deviation of the logarithms of hyper-parameters around those of the model."""
_LEAST_NOISE = 1e-4
"""The least noise to start from, relative to the start of the model."""
_FEW, _FEW_ROWS = 4, 250
"""Starts, and rows of the data, if the user does not say how many: a small part of the cost of a fit."""
_CLEARLY_LOWER = 0.5
"""Nats by which another start must be ahead on some of the rows, or all rows are not tried from it."""
_BUDGET, _LEAST_BUDGET = 0.5, 10
"""The second start is given up if it is still behind after this part of the evaluations of the first."""
_SAME = 0.05
"""A search whose parameters are all so near to those of the first fit is on its way to the same optimum."""
_ROUNDING = 1e-15


def fit_from_several(
    model: Any,
    fit: Callable[..., FitResult],
    optimizer: str,
    count: int | None,
    generator: torch.Generator | int | None,
    options: dict[str, Any],
) -> FitResult:
    """Fit a Gaussian process from several starts; for the arguments see ``GPRegression.fit``."""
    who = f"{type(model).__name__}.fit"
    check_count(who, count)
    _checks.check_gradients_are_allowed(who)
    source = _checks.make_generator(who, generator, torch.device("cpu"))
    is_resumed = options.get("resume") is not None
    has_one_start = count == 1 or not has_learned_numbers(model)
    if has_one_start or optimizer != "lbfgs" or is_resumed or not is_batchable(model):
        return fit(optimizer, **options)
    if count is not None:
        subject = _choose_subject(model, source) if _is_on_grid(model) else model
        set_parameters(model, find_best_start(subject, draw_starts(model, count, source)))
        return fit(optimizer, **options)
    if any(options.get(name) is not None for name in ("steps", "callback")):
        return fit(optimizer, **options)
    options = {name: value for name, value in options.items() if value is not None}
    return _fit_best(model, functools.partial(fit, optimizer, **options), source)


def check_count(who: str, count: int | None) -> None:
    """Raise an OptionError unless a number of starts is positive, or None."""
    if count is not None and not _checks.is_integer(count):
        raise _exceptions.OptionError(f"{who}: starts must be a positive number, got {count!r}.")


def has_learned_numbers(model: nn.Module) -> bool:
    """Return whether a parameter of a model requires a gradient."""
    return any(parameter.requires_grad for parameter in model.parameters())


def _fit_best(model: Any, fit: Callable[..., FitResult], generator: torch.Generator | None) -> FitResult:
    """Fit from where the model is, and from a second start, the best of a few, unless it leads nowhere new.

    The starts race each other on some of the rows. If none of them ends clearly below what the start of the
    model reaches there, it has all rows to itself.
    """
    starts = draw_starts(model, _FEW + 1, generator)
    subject = _choose_subject(model, generator)
    second = race_starts(subject, starts[1:], choose_stages(_FEW))
    if subject is model or _is_on_grid(model):
        # The processes of a grid may have raced other starts, and have to decide alike.
        other = starts[1] if second is None else second.x
        return fit_again(model, fit, lambda: set_parameters(model, other))
    if second is None:
        return fit()
    own, whole = starts[:1], [Stage(sum(stage.rounds for stage in choose_stages(_FEW)), 1)]
    for _ in range(2):  # the start of the model has had no others to win against, and gets more time
        reached = race_starts(subject, own, whole)
        if reached is None:
            break
        if reached.value < second.value + _CLEARLY_LOWER:
            return fit()
        own = reached.x[None]
    set_parameters(model, second.x)
    return fit_again(model, fit, lambda: set_parameters(model, starts[0]))


def fit_again(
    model: Any, fit: Callable[..., FitResult], move: Callable[[], None], *, only_if_converged: bool = False
) -> FitResult:
    """Fit from where a model is, then from a second start; keep the better one.

    Args:
        model: Has an attribute ``jitter``.
        fit: Fits the model; takes a ``callback``.
        move: Sets the parameters of the model to the second start.
        only_if_converged: Leave out the second fit if the first one has not converged.
    """
    with warnings.catch_warnings(record=True) as of_first:
        warnings.simplefilter("always")
        first = fit()
    second, of_second = None, list[warnings.WarningMessage]()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept, jitter = [parameter.detach().clone() for parameter in learned], model.jitter
    if first.converged or not only_if_converged:
        with warnings.catch_warnings(record=True) as of_second:
            warnings.simplefilter("always")
            move()
            budget = max(_LEAST_BUDGET, int(_BUDGET * first.steps))
            scales = get_scales(model, learned)
            reached = _join(kept) / scales

            def leads_nowhere(step: int, loss: float) -> bool:
                if loss <= first.loss:
                    return False
                return step >= budget or bool(((_join(learned) / scales - reached).abs() < _SAME).all())

            # If the second start cannot be evaluated, the first fit stands.
            with contextlib.suppress(_exceptions.FitError):
                second = fit(callback=leads_nowhere)
    is_better = second is not None and second.loss < first.loss
    if not is_better:
        with torch.no_grad():
            for parameter, value in zip(learned, kept, strict=True):
                parameter.copy_(value)
        model.jitter = jitter
    for warning in of_second if is_better else of_first:
        warnings.warn(warning.message, stacklevel=5)
    if second is None:
        return first
    return dataclasses.replace(
        second if is_better else first,
        steps=first.steps + second.steps,
        seconds=first.seconds + second.seconds,
    )


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """Return the numbers of several tensors as one vector, in float64 on the CPU."""
    return torch.cat([tensor.detach().flatten().double().cpu() for tensor in tensors])


def _choose_subject(model: Any, generator: torch.Generator | None) -> Any:
    """Return the model that starts race on: a copy with some of the rows if there are many."""
    if len(model.X) <= _FEW_ROWS:
        return model
    rows = torch.randperm(len(model.X), generator=generator)[:_FEW_ROWS].to(model.X.device)
    return take_rows(model, rows)


def _is_on_grid(model: Any) -> bool:
    return getattr(model, "distributed", None) is not None


def choose_stages(count: int) -> list[Stage]:
    """Return the stages of a race: after how many evaluations how many of ``count`` searches continue."""
    if count <= _FEW:
        return [Stage(4, 2), Stage(6, 1)]
    return [Stage(2, count // 2), Stage(3, max(3, count // 4)), Stage(4, max(2, count // 8)), Stage(8, 1)]


def draw_starts(model: Any, count: int, generator: torch.Generator | None) -> Tensor:
    """Return points (count, p) of the learned parameters in float64 on the CPU; the first is where the model
    is.

    Hyper-parameters with logarithms are drawn around those of the model, the noise between a little and that
    of the model, those with a prior from the prior, and others stay.
    """
    places = {
        id(module.get_parameter(descriptor.raw_name)): (module, descriptor)
        for _, module, descriptor in model.iterate_hyperparameters()
    }
    parts = [
        _draw_part(parameter.detach().double().cpu(), *places[id(parameter)], count, generator)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    return torch.cat(parts, 1)


def find_best_start(model: Any, starts: Tensor) -> Tensor:
    """Return the parameters (p,) that the best of several searches has found, by a race on the model's data.

    If no search can be evaluated, it is the first start.
    """
    found = race_starts(model, starts, choose_stages(len(starts)))
    return starts[0] if found is None else found.x


def race_starts(model: Any, starts: Tensor, stages: Sequence[Stage]) -> Point | None:
    """Return where the best of several searches has come on the model's data; None: none can be evaluated."""
    scales = get_scales(model, [p for p in model.parameters() if p.requires_grad])
    found = race_searches(BatchedLoss(model), starts / scales, stages, _ROUNDING)
    return Point(found[0].x * scales, found[0].value, found[0].gradient) if found else None


def take_rows(model: Any, rows: Tensor) -> Any:
    """Return a copy of a model with some of the rows of its data, and without cached results."""
    model.clear_cache()
    smaller = copy.deepcopy(model)
    smaller.X, smaller.y = model.X[rows], model.y[rows]
    return smaller


def set_parameters(model: Any, point: Tensor) -> None:
    """Set the learned parameters of a model to a point (p,)."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter, part in zip(learned, point.split([p.numel() for p in learned]), strict=True):
            parameter.copy_(part.view_as(parameter))
    if _is_on_grid(model):
        # Each process may have found another start; all use that of the first.
        model.agree_on_parameters()


def _draw_part(
    raw: Tensor, module: nn.Module, descriptor: Hyperparameter, count: int, generator: torch.Generator | None
) -> Tensor:
    """Return (count, m) raw values of a hyper-parameter of m numbers; the first row is ``raw``."""
    drawn = raw.flatten().repeat(count, 1)
    shape, prior = drawn[1:].shape, get_priors(module).get(descriptor.name)
    if prior is not None:
        values = _draw_from_prior(prior, raw.shape, count - 1, generator)
        bounds = get_all_bounds(module).get(descriptor.name)
        values = values if bounds is None else bounds.move_inside(values)
        encoded = descriptor.encode(module, values).reshape(shape)
        drawn[1:] = torch.where(encoded.isfinite(), encoded, drawn[1:])
    elif descriptor.name == "noise_var":
        drawn[1:] += math.log(_LEAST_NOISE) * torch.rand(shape, dtype=raw.dtype, generator=generator)
    elif descriptor.is_logarithmic:
        drawn[1:] += _SPREAD * torch.randn(shape, dtype=raw.dtype, generator=generator)
    return drawn


def _draw_from_prior(
    prior: Distribution, shape: torch.Size, count: int, generator: torch.Generator | None
) -> Tensor:
    """Return draws (count, *shape) in float64. The state of torch's own generator is kept."""
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drawn = move_distribution(prior, torch.zeros((), dtype=torch.float64)).expand(shape).sample((count,))
    return drawn.double().cpu()
