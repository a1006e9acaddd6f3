"""Fits of models that hold their data: L-BFGS or Adam on ``loss()``, with a record of what happened."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.distributed.group import Group
from lapgrad.distributed.losses import share_callback
from lapgrad.models import _checks
from lapgrad.models._training import lbfgs as _lbfgs
from lapgrad.models._training import progress as _progress
from lapgrad.models._training.adam import AdamOptimizer, Rate, minimise_with_adam
from lapgrad.models._training.cuda_graph import CudaRecorder
from lapgrad.models._training.evaluation import Evaluation, ReplayedEvaluation
from lapgrad.models._training.lbfgs_search import Search, restore_search
from lapgrad.models._training.result import FitResult
from lapgrad.models._training.resuming import LiveState, ResumableModel, State, check_state

OPTIMIZERS = ("lbfgs", "adam")
_STEPS = {"lbfgs": 200, "adam": 1000}
_ADAM_LR = 0.05
_PATIENCE = 50
"""Adam stops after this many steps without an improvement."""

_ROUNDINGS = 4.0
"""A change of the loss by fewer eps of its magnitude than this counts as rounding error."""

#: The entries of ``training_state`` of a fit by Adam, and their types.
_ADAM_STATE = {
    "optimizer": dict,
    "step": int,
    "gradients": list,
    "loss": float,
    "jitter": float,
    "least": float,
    "since_least": int,
}

_QUIET_MOVES = 2
"""L-BFGS has converged after so many moves in a row that gain less than the tolerance."""
_LARGEST_MAGNITUDE = 10.0
"""Losses are sums over the data: relative to all of a large one, a tolerance would end a fit too early."""

#: Called after each step with its number and the loss; True stops the fit.
Callback = Callable[[int, float], bool | None]


@runtime_checkable
class JitteredModule(Protocol):
    """A module that says how much its last evaluation added to a diagonal (see ``Model.jitter``)."""

    jitter: float


@runtime_checkable
class ReplayableModule(Protocol):
    """A module that says whether an evaluation of its loss may be recorded as a CUDA graph."""

    @property
    def replayable(self) -> bool:
        """Whether each evaluation makes the same operations on the same tensors."""


@runtime_checkable
class ScaledModule(Protocol):
    """A module some of whose parameters are in units of the data, not logarithms."""

    def get_scales_of_parameters(self) -> dict[str, Tensor]:
        """Return the size of a typical change of parameters, by name."""


class _FitEnd(Exception):  # noqa: N818  (not an error: it ends the loop of the optimiser)
    def __init__(self, reason: str, converged: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.converged = reason, converged


def fit(
    module: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: str = "lbfgs",
    *,
    steps: int | None = None,
    lr: float | Rate | None = None,
    tolerance: float = 1e-6,
    progress: bool = False,
    callback: Callback | None = None,
    resume: State | None = None,
    who: str = "fit",
) -> FitResult:
    """Minimise ``loss()`` over the parameters of ``module`` that require gradients.

    Args:
        module: Owns the parameters. If it is a ``ResumableModel``, it keeps the state of the fit.
        loss: A scalar.
        optimizer: "lbfgs", or "adam" (for losses with random numbers in them, and for networks).
        steps: Evaluations of the loss, at most, those of the fit that is resumed included; None: 200 of
            L-BFGS, 1000 of Adam.
        lr: Learning rate of Adam (None: 0.05), or a function that returns the rate of a step, given its
            number from 0 on; the length of the first step of L-BFGS (None: 1).
        tolerance: Stop when the loss changes by less than this, relative to its magnitude or to 1: in 50
            steps of Adam; in two moves of L-BFGS in a row, and again after a restart, there relative to a
            magnitude of 10 at most (1e-5 by default). 0: never.
        progress: Show a progress bar with the loss (needs rich).
        callback: Called after each step with its number and the loss; True stops the fit.
        resume: The ``training_state`` of an earlier fit by the same optimiser, which is continued; None:
            start.
        who: Name of the model, for messages.

    Raises:
        FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
            parameters are then those of the last step that was good.
        OptionError: An argument is not one of those above, or there is nothing to learn.
    """
    if optimizer not in OPTIMIZERS:
        raise _errors.unknown_option(who, "optimizer", optimizer, OPTIMIZERS)
    limit = _STEPS[optimizer] if steps is None else steps
    _checks.check_steps(who, limit)
    _checks.check_gradients_are_allowed(who)
    _checks.check_fit_options(who, tolerance, lr, callback)
    if optimizer == "lbfgs" and callable(lr):
        raise _exceptions.OptionError(f"{who}: only Adam takes a rate that depends on the step.")
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise _exceptions.OptionError(f"{who}: no parameter requires a gradient: there is nothing to fit.")
    started = time.perf_counter()
    group, counter = find_group(module), getattr(module, "row_counter", None)
    shows = progress and (group is None or group.is_first)
    rows = counter if getattr(module, "spread_rows", None) is not None else None
    with _progress.show_progress(shows, limit, who, rows) as show, warnings.catch_warnings():
        # Warnings at points that the line search only tried are useless; that of the last point comes below.
        warnings.simplefilter("ignore", _exceptions.JitterWarning)
        evaluation = _make_evaluation(module, loss, parameters)
        shared = share_callback(group, callback)
        run = _FitRun(who, module, parameters, evaluation, limit, tolerance, shared, show, group)
        run.keep_state(None)
        try:
            if callable(lr):
                run.run_adam(lr, resume)
            elif optimizer == "adam":
                run.run_adam(lambda step: lr or _ADAM_LR, resume)
            else:
                run.run_lbfgs(lr or 1.0, resume)
        except _FitEnd as stop:
            reason, converged = stop.reason, stop.converged
            run.keep_state(run.get_state())
        except Exception as error:
            run.keep_state(None)
            raised = run.share_failure(error)
            if raised is error:
                raise
            raise raised from error
        except BaseException:
            run.keep_state(None)
            raise
        finally:
            run.restore()
            evaluation.close()
    if run.jitter:
        warnings.warn(
            f"{who}.fit: at the parameters it has ended at, the covariance matrix is positive definite only "
            f"with {run.jitter:.1e} of the mean of its diagonal added to the diagonal.",
            _exceptions.JitterWarning,
            stacklevel=3,
        )
    return FitResult(run.best, run.history, run.steps, converged, reason, time.perf_counter() - started)


def find_group(module: nn.Module) -> Group | None:
    """Return the group of processes that fits a module together; None: this process alone."""
    group = getattr(module, "group", None)
    return group if isinstance(group, Group) and group.size > 1 else None


def _make_evaluation(
    module: nn.Module, loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter]
) -> Evaluation:
    """Return an evaluation of the loss, replayed as a CUDA graph where device and module allow it."""
    device = parameters[0].device
    if device.type == "cuda" and isinstance(module, ReplayableModule) and module.replayable:
        return ReplayedEvaluation(module, loss, parameters, CudaRecorder(device))
    return Evaluation(loss, parameters)


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors into one float64 vector on the CPU, because L-BFGS reads single numbers of it."""
    return torch.cat([tensor.flatten().to("cpu", torch.float64) for tensor in tensors])


def get_scales(module: nn.Module, parameters: Sequence[Tensor]) -> Tensor:
    """Return the size of a typical change of each number in ``parameters``, (p,), in float64 on the CPU.

    It is 1, as that of logarithms is, unless the module says something else by ``get_scales_of_parameters``.
    """
    known = module.get_scales_of_parameters() if isinstance(module, ScaledModule) else {}
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    one = torch.ones((), device=parameters[0].device)
    return _flatten(
        [
            torch.ones_like(parameter.detach()) * known.get(names.get(id(parameter), ""), one)
            for parameter in parameters
        ]
    )


class _FitRun:
    """One fit: counts evaluations, keeps the last good parameters, and decides when to stop."""

    def __init__(
        self,
        who: str,
        module: nn.Module,
        parameters: Sequence[nn.Parameter],
        evaluation: Evaluation,
        limit: int,
        tolerance: float,
        callback: Callback | None,
        show: Callable[[int, float], None],
        group: Group | None = None,
    ) -> None:
        self.group = group
        self.who, self.module, self.parameters, self.limit = who, module, parameters, limit
        self.evaluation = evaluation
        self.tolerance, self.callback, self.show = tolerance, callback, show
        self.steps, self.history = 0, list[float]()
        self.good = [parameter.detach().clone() for parameter in parameters]
        self.best, self.jitter = math.nan, 0.0
        self.optimizer: AdamOptimizer | None = None
        self.search: Search | None = None
        self.gradients: Sequence[Tensor] = []
        #: The last loss of Adam that was an improvement by more than the tolerance, and the steps since.
        self.least, self.since_least = math.inf, 0
        self.scales = get_scales(module, parameters)

    def restore(self) -> None:
        """Set parameters and jitter of the module to the last good ones."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.good, strict=True):
                parameter.copy_(value)
        if isinstance(self.module, JitteredModule):
            self.module.jitter = self.jitter

    def keep_state(self, state: State | LiveState | None) -> None:
        """Let the module return this state from its ``training_state``, if it has one."""
        if isinstance(self.module, ResumableModel):
            self.module.keep_training_state(state)

    def get_state(self) -> State:
        """Return copies of all that the rest of the run depends on besides the parameters.

        The last point that was accepted has been evaluated, but the step away from it has not been made: its
        gradients are part of the state.
        """
        if self.search is not None:
            return self.search.get_state()
        assert self.optimizer is not None
        return {
            "optimizer": self.optimizer.get_state(),
            "step": self.steps,
            "gradients": [gradient.clone() for gradient in self.gradients],
            "loss": self.best,
            "jitter": self.jitter,
            "least": self.least,
            "since_least": self.since_least,
        }

    def run_adam(self, compute_rate: Rate, resume: State | None) -> None:
        """Run Adam until it converges or must stop. The loss is known at the parameters where it ends."""
        self.optimizer = AdamOptimizer(self.parameters, compute_rate(0))
        if resume is not None:
            self.resume_adam(self.optimizer, compute_rate, resume)
        self.keep_state(LiveState(self.get_state))

        def accept(value: float) -> None:
            if not math.isfinite(value):
                raise self.make_error(value)
            improved = value < self.least - self.tolerance * max(1.0, abs(value))
            self.since_least = 0 if improved else self.since_least + 1
            self.least = value if improved else self.least
            self.accept(value, self.get_jitter())
            if self.tolerance and self.since_least >= _PATIENCE:
                raise _FitEnd(f"the loss has not improved in {_PATIENCE} steps", converged=True)
            self.check_limit()

        minimise_with_adam(self.optimizer, self.evaluate, compute_rate, first=self.steps, accept=accept)

    def resume_adam(self, optimizer: AdamOptimizer, compute_rate: Rate, state: State) -> None:
        """Load the state of an earlier run, and take the step whose gradients that run computed last."""
        check_state(self.who, state, _ADAM_STATE)
        if [len(state["gradients"]), *(getattr(given, "shape", None) for given in state["gradients"])] != [
            len(self.parameters),
            *(parameter.shape for parameter in self.parameters),
        ]:
            raise _exceptions.OptionError(f"{self.who}: resume is of a model with other parameters.")
        optimizer.load_state(self.who, state["optimizer"])
        self.steps, self.best, self.jitter = state["step"], state["loss"], state["jitter"]
        self.least, self.since_least = state["least"], state["since_least"]
        self.gradients = [
            gradient.to(parameter)
            for gradient, parameter in zip(state["gradients"], self.parameters, strict=True)
        ]
        self.check_limit()
        optimizer.set_rate(compute_rate(self.steps - 1))
        optimizer.move(self.gradients)
        optimizer.clear_gradients()

    def run_lbfgs(self, first_step: float, resume: State | None) -> None:
        """Run L-BFGS. Where the loss cannot be evaluated it is infinite, and the line search steps back."""

        def evaluate(x: Tensor) -> _lbfgs.Point:
            self.check_limit()
            self.set_flat(x)
            try:
                value, gradients = self.evaluate()
            except _exceptions.FitError:
                value, gradients = math.inf, []
            flat = self.scales * _flatten(gradients) if gradients else torch.zeros_like(x)
            is_finite = math.isfinite(value) and bool(flat.isfinite().all())
            return _lbfgs.Point(x, value if is_finite else math.inf, flat, self.get_jitter())

        search = self.start_lbfgs() if resume is None else self.resume_lbfgs(resume)
        self.search = search
        self.keep_state(LiveState(self.get_state))
        if resume is None:
            self.accept(search.point.value, search.point.note)
        # A flat valley looks like convergence if the approximate Hessian misses a direction, so the search is
        # started again, without what it has learned, until that gains nothing more.
        while True:
            search = self.search_with_lbfgs(evaluate, search, first_step)
            gained = search.loss_of_start - search.point.value
            threshold = self.compute_threshold(search.point.value)
            if search.has_restarted and gained <= _QUIET_MOVES * threshold:
                reason = (
                    "the last moves, and those of a restarted search, lowered the loss by less than "
                    f"{threshold:.2g}"
                )
                raise _FitEnd(
                    reason if self.tolerance else "no further improvement can be found", converged=True
                )
            search = self.search = Search(
                _lbfgs.make_pairs(), search.point, self.steps, 0, search.point.value, has_restarted=True
            )

    def start_lbfgs(self) -> Search:
        """Evaluate the loss where the parameters are, and return a search that begins there."""
        value, gradients = self.evaluate()
        x = _flatten([parameter.detach() for parameter in self.parameters]) / self.scales
        gradient = self.scales * _flatten(gradients)
        if not (math.isfinite(value) and bool(gradient.isfinite().all())):
            raise self.make_error(value)
        point = _lbfgs.Point(x, value, gradient, self.get_jitter())
        return Search(_lbfgs.make_pairs(), point, self.steps, 0, value, has_restarted=False)

    def resume_lbfgs(self, state: State) -> Search:
        """Return the search of an earlier run, and set the parameters to the last point of that run."""
        search = restore_search(self.who, state, self.scales.numel())
        self.set_flat(search.point.x)
        self.keep_good()
        self.steps, self.best, self.jitter = search.steps, search.point.value, search.point.note
        return search

    def search_with_lbfgs(
        self, evaluate: Callable[[Tensor], _lbfgs.Point], search: Search, first_step: float
    ) -> Search:
        """Move until some moves in a row gain nearly nothing, or none can be found; return where it ended."""
        if search.quiet >= _QUIET_MOVES:
            return search
        rounding = _ROUNDINGS * max(torch.finfo(parameter.dtype).eps for parameter in self.parameters)
        for point in _lbfgs.iterate_lbfgs(
            evaluate, search.point, first_step, pairs=search.pairs, rounding=rounding
        ):
            self.set_flat(point.x)
            is_quiet = search.point.value - point.value < self.compute_threshold(point.value)
            search = self.search = search.move(point, self.steps, is_quiet=is_quiet)
            self.accept(point.value, point.note)
            if search.quiet >= _QUIET_MOVES:
                break
        return search

    def compute_threshold(self, value: float) -> float:
        """Return the gain below which a move of L-BFGS counts as quiet."""
        return self.tolerance * min(max(1.0, abs(value)), _LARGEST_MAGNITUDE)

    def evaluate(self) -> tuple[float, Sequence[Tensor]]:
        """Return the loss and its gradients, zeros where it does not depend on a parameter.

        Raises:
            FitError: An operator failed.
        """
        if self.group is not None:
            # Rounding may differ between machines. All processes go on from the numbers of the first one.
            self.group.copy_from_first(self.parameters)
        self.steps += 1
        try:
            loss, gradients = self.evaluation()
        except _exceptions.ProcessGroupError:
            raise
        except (_exceptions.LapgradError, _exceptions.TORCH_LINALG_ERROR) as error:
            raise self.make_error(error) from error
        self.gradients = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
        ]
        return loss.item(), self.gradients

    def get_jitter(self) -> float:
        """Return what the last evaluation had to add to a diagonal; 0 for modules without ``jitter``."""
        return self.module.jitter if isinstance(self.module, JitteredModule) else 0.0

    def accept(self, value: float, jitter: float) -> None:
        """Keep the present parameters as good ones, and report them to progress bar and callback."""
        self.best, self.jitter = value, jitter
        self.history.append(value)
        self.keep_good()
        self.show(self.steps, value)
        if self.callback is not None and self.callback(self.steps, value):
            raise _FitEnd("the callback asked to stop")

    def keep_good(self) -> None:
        """Keep a copy of the present parameters, to which ``restore`` returns."""
        with torch.no_grad():
            for kept, parameter in zip(self.good, self.parameters, strict=True):
                kept.copy_(parameter)

    def share_failure(self, error: Exception) -> BaseException:
        """Tell the other processes of an error that ends the fit; return the error to raise."""
        if self.group is None:
            return error
        # They are about to copy the parameters of the first process.
        return self.group.fail(
            error, sum(parameter.numel() for parameter in self.parameters), self.parameters[0].device
        )

    def check_limit(self) -> None:
        """End the fit if there may be no further evaluation."""
        if self.steps >= self.limit:
            raise _FitEnd(f"{self.limit} steps were made")

    def set_flat(self, x: Tensor) -> None:
        """Set all parameters from one vector, in units of their scales."""
        parts = (x * self.scales).split([parameter.numel() for parameter in self.parameters])
        with torch.no_grad():
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def make_error(self, cause: float | Exception) -> _exceptions.FitError:
        """Return the error for a loss that is not finite, or for an operator that failed."""
        kept = "" if self.steps == 1 else f" The parameters are those of step {self.steps - 1}."
        what = (
            f"the loss or its gradient is not finite (loss {cause})"
            if isinstance(cause, float)
            else str(cause)
        )
        return _exceptions.FitError(f"{self.who}.fit: step {self.steps}: {what}{kept}", self.steps)
