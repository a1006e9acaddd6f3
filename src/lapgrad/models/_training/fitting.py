"""The optimisation loop of every model: L-BFGS or Adam on ``loss()``, with a record of what happened."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models import _plots
from lapgrad.models._training import lbfgs as _lbfgs
from lapgrad.models._training import progress as _progress
from lapgrad.models._training.cuda_graph import CudaRecorder, undisturbed
from lapgrad.models._training.evaluation import Evaluation, Replayed

OPTIMIZERS = ("lbfgs", "adam")
_STEPS = {"lbfgs": 200, "adam": 1000}
_ADAM_LR = 0.05
_PATIENCE = 50
"""Adam stops when this many steps have brought no improvement."""

_ROUNDINGS = 4.0
"""How many eps of the loss are no improvement."""

#: Called after each step with its number and the loss; True stops the fit.
Callback = Callable[[int, float], bool | None]


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a fit has done.

    Attributes:
        loss: The loss at the parameters that the model has now.
        history: The loss at the start and after each move of the parameters. (The line search of L-BFGS may
            evaluate the loss several times for one move.)
        steps: Evaluations of the loss and its gradient.
        converged: Whether it stopped because the loss no longer changed.
        reason: Why it stopped, in words.
        seconds: How long it took.
    """

    loss: float
    history: list[float]
    steps: int
    converged: bool
    reason: str
    seconds: float

    def plot(self, axes: Any = None) -> Any:
        """The learning curve, with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.

        Returns:
            The axes.
        """
        return _plots.learning_curve(self.history, axes)


class _Stop(Exception):  # noqa: N818  (no error: the reason to end)
    def __init__(self, reason: str, converged: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.converged = reason, converged


def fit(
    module: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: str = "lbfgs",
    *,
    steps: int | None = None,
    lr: float | None = None,
    tolerance: float = 1e-6,
    progress: bool = False,
    callback: Callback | None = None,
    who: str = "fit",
) -> FitResult:
    """Minimise ``loss()`` over the parameters of ``module`` that require gradients.

    Args:
        module: Owns the parameters.
        loss: A scalar.
        optimizer: "lbfgs", or "adam" (for losses with random numbers in them, and for networks).
        steps: Evaluations of the loss, at most; None: 200 of L-BFGS, 1000 of Adam.
        lr: Learning rate of Adam (None: 0.05); the length of the first step of L-BFGS (None: 1).
        tolerance: Stop when the loss changes by less than this, relative to its magnitude or to 1: in one
            move of L-BFGS, in 50 steps of Adam. 0: never.
        progress: Show a progress bar with the loss (needs rich).
        callback: Called after each step with its number and the loss; True stops the fit.
        who: Name of the model, for messages.

    Raises:
        FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
            parameters are then those of the last step that was good.
        OptionError: An argument is not one of those above, or there is nothing to learn.
    """
    if optimizer not in OPTIMIZERS:
        raise _errors.unknown_option(who, "optimizer", optimizer, OPTIMIZERS)
    limit = _STEPS[optimizer] if steps is None else steps
    if limit < 1:
        raise _errors.OptionError(f"{who}: steps must be at least 1, got {steps}.")
    if not tolerance >= 0.0 or (lr is not None and not lr > 0.0):
        raise _errors.OptionError(f"{who}: tolerance and lr must not be negative, got {tolerance} and {lr}.")
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not learned:
        raise _errors.OptionError(f"{who}: no parameter requires a gradient: there is nothing to fit.")
    started = time.perf_counter()
    with _progress.bar(progress, limit, who) as show, warnings.catch_warnings():
        # Jitter at a point that was only tried does not matter; that of the last one is reported below.
        warnings.simplefilter("ignore", _errors.JitterWarning)
        evaluation = _evaluation_of(module, loss, learned)
        run = _Run(who, module, learned, evaluation, limit, tolerance, callback, show)
        try:
            run.lbfgs(1.0 if lr is None else lr) if optimizer == "lbfgs" else run.adam(lr or _ADAM_LR)
        except _Stop as stop:
            reason, converged = stop.reason, stop.converged
        finally:
            run.restore()
            evaluation.close()
    if run.jitter:
        warnings.warn(
            f"{who}.fit: at the parameters it has ended at, the covariance matrix is positive definite only "
            f"with {run.jitter:.1e} of the mean of its diagonal added to the diagonal.",
            _errors.JitterWarning,
            stacklevel=3,
        )
    return FitResult(run.best, run.history, run.steps, converged, reason, time.perf_counter() - started)


def _evaluation_of(
    module: nn.Module, loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter]
) -> Evaluation:
    """Replayed on a GPU, if the module says that its loss can be."""
    device = parameters[0].device
    if device.type == "cuda" and getattr(module, "replayable", False):
        return Replayed(module, loss, parameters, CudaRecorder(device))
    return Evaluation(loss, parameters)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All in one vector, in double precision and on the CPU: small, and read number by number."""
    with undisturbed():
        return torch.cat([tensor.flatten().to("cpu", torch.float64) for tensor in tensors])


class _Run:
    """One fit: counts, remembers the last good parameters, and decides when to stop."""

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
    ) -> None:
        self.who, self.module, self.parameters, self.limit = who, module, parameters, limit
        self.evaluation = evaluation
        self.tolerance, self.callback, self.show = tolerance, callback, show
        self.steps, self.history = 0, list[float]()
        self.good = [parameter.detach().clone() for parameter in parameters]
        self.best, self.jitter = math.nan, 0.0

    def restore(self) -> None:
        """Set the parameters to the last good ones."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.good, strict=True):
                parameter.copy_(value)
        if hasattr(self.module, "jitter"):
            cast(Any, self.module).jitter = self.jitter  # of models; other modules have none

    def adam(self, lr: float) -> None:
        """Moves after every evaluation but the last, so that the loss is known where it ends."""
        optimizer = torch.optim.Adam(self.parameters, lr=lr)
        since_improvement, reference = 0, math.inf
        while True:
            value, gradients = self.evaluated()
            if not math.isfinite(value):
                raise self.failed(value)
            self.accept(value, self.used_jitter())
            improved = value < reference - self.tolerance * max(1.0, abs(value))
            since_improvement = 0 if improved else since_improvement + 1
            reference = value if improved else reference
            if self.tolerance and since_improvement >= _PATIENCE:
                raise _Stop(f"the loss has not improved in {_PATIENCE} steps", converged=True)
            self.check_limit()
            # Now, and not before a callback that may have gradients of its own; none are left in the end.
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()

    def lbfgs(self, first_step: float) -> None:
        """Points where the loss cannot be evaluated end no fit: the line search comes back from them."""

        def evaluate(x: Tensor) -> _lbfgs.Point:
            self.check_limit()
            self.set_flat(x)
            try:
                value, gradients = self.evaluated()
            except _errors.FitError:
                value, gradients = math.inf, []
            flat = _flat(gradients) if gradients else torch.zeros_like(x)
            finite = math.isfinite(value) and bool(flat.isfinite().all())
            return _lbfgs.Point(x, value if finite else math.inf, flat, self.used_jitter())

        value, gradients = self.evaluated()
        x, gradient = _flat([parameter.detach() for parameter in self.parameters]), _flat(gradients)
        if not (math.isfinite(value) and bool(gradient.isfinite().all())):
            raise self.failed(value)
        self.accept(value, self.used_jitter())
        start = _lbfgs.Point(x, value, gradient)
        rounding = _ROUNDINGS * max(torch.finfo(parameter.dtype).eps for parameter in self.parameters)
        for point in _lbfgs.iterates(evaluate, start, first_step, rounding=rounding):
            before = self.history[-1]
            self.set_flat(point.x)
            self.accept(point.value, point.note)
            if before - point.value < self.tolerance * max(1.0, abs(point.value)):
                raise _Stop(
                    f"the loss changed by less than {self.tolerance:g} of its magnitude", converged=True
                )
        raise _Stop("no further improvement can be found", converged=True)

    def evaluated(self) -> tuple[float, list[Tensor]]:
        """The loss and its gradients; an operator that fails is a FitError."""
        self.steps += 1
        try:
            loss, gradients = self.evaluation()
        except (_errors.LapgradError, _errors.TORCH_LINALG_ERROR) as error:
            raise self.failed(error) from error
        with undisturbed():
            value = loss.item()
        return value, [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
        ]

    def used_jitter(self) -> float:
        """What the last evaluation had to add, of modules that say so (``Model.jitter``)."""
        return float(getattr(self.module, "jitter", 0.0))

    def accept(self, value: float, jitter: float) -> None:
        """The present parameters are good; tell whoever wants to know."""
        self.best, self.jitter = value, jitter
        self.history.append(value)
        with torch.no_grad():
            for kept, parameter in zip(self.good, self.parameters, strict=True):
                kept.copy_(parameter)
        self.show(self.steps, value)
        if self.callback is not None and self.callback(self.steps, value):
            raise _Stop("the callback asked to stop")

    def check_limit(self) -> None:
        if self.steps >= self.limit:
            raise _Stop(f"{self.limit} steps were made")

    def set_flat(self, x: Tensor) -> None:
        """Take the parameters from one vector."""
        parts = x.split([parameter.numel() for parameter in self.parameters])
        with torch.no_grad(), undisturbed():
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def failed(self, cause: float | Exception) -> _errors.FitError:
        kept = "" if self.steps == 1 else f" The parameters are those of step {self.steps - 1}."
        what = (
            f"the loss or its gradient is not finite (loss {cause})"
            if isinstance(cause, float)
            else str(cause)
        )
        return _errors.FitError(f"{self.who}.fit: step {self.steps}: {what}{kept}", self.steps)
