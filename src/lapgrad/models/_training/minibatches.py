"""Training on minibatches: Adam on an estimate of the loss, which is read from the device at intervals.

A step launches its work and does not wait for it. Every ``every`` steps the mean loss is read back, together
with the status of all factorisations since the last check. At these checks the progress bar and callbacks are
called, and the parameters are kept as the last good ones.

On a GPU a step is replayed as one CUDA graph, after a few ordinary steps (``cuda_graph.py``). Everything that
differs between two steps (rows, random numbers, rates) is therefore in tensors that keep their addresses and
are filled before the step. Random numbers are drawn before the step too: a generator that is used inside of
a graph would have to be registered with each graph. Drawn in the order in which a step needs them, they are
the same with and without graphs, and a resumed run continues their sequence.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from lapgrad import _exceptions
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.distributed.group import Group
from lapgrad.distributed.losses import share_callback, sum_loss
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training import progress as _progress
from lapgrad.models._training.adam import AdamOptimizer
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.plan import TrainingPlan
from lapgrad.models._training.result import FitResult
from lapgrad.models._training.resuming import ResumableModel, check_state
from lapgrad.models._training.shares import BatchPart, DataShare
from lapgrad.models._training.thread_choice import ThreadChoice

#: The entries of ``training_state``, and their types.
_STATE = {
    "optimizer": dict,
    "step": int,
    "seconds": float,
    "order": Tensor,
    "position": int,
    "generator": Tensor,
}


@dataclasses.dataclass(frozen=True)
class Minibatch:
    """The data of one step. The tensors stay the same; each step fills them with other numbers.

    Attributes:
        rows: (b,), indices of rows of the data of this process.
        normals: Standard normal random numbers.
        part: The weight of the rows in the loss.
    """

    rows: Tensor
    normals: list[Tensor]
    part: BatchPart


class TrainingTask(abc.ABC):
    """The parts of a training step that depend on the model."""

    @abc.abstractmethod
    def make_normals(self, count: int) -> list[Tensor]:
        """Return uninitialised tensors for the normal random numbers of minibatches of ``count`` rows.

        Rows are their second dimension.
        """

    def prepare_step(self, step: int, rate: float) -> None:  # noqa: B027  (optional)
        """Fill the task's own tensors whose numbers differ between steps.

        Args:
            step: Its number.
            rate: The learning rate, relative to that of the start.
        """

    @abc.abstractmethod
    def loss(self, minibatch: Minibatch) -> Tensor:
        """Return the loss, a scalar. With several processes, the sum of theirs is the loss.

        It is recorded, as is ``finish_step``: both make the same operations on the same tensors in each step.
        """

    def finish_step(self) -> None:  # noqa: B027  (optional)
        """Update what Adam does not move, after Adam has moved its parameters."""


class MinibatchModel(ResumableModel):
    """A model that is learned on minibatches, in a run that can be interrupted and resumed."""

    def _run_training(self, training: TrainingRun, progress: bool, callback: Callback | None) -> FitResult:
        """Run a training, and keep its state at each check of the loss."""

        def keep_state(step: int, value: float) -> bool | None:
            self.keep_training_state(training.get_state())
            return None if callback is None else callback(step, value)

        group = training.group
        shows = progress and (group is None or group.is_first)
        try:
            result = training.run(progress=shows, callback=share_callback(group, keep_state))
        except Exception as error:
            raised = training.share_failure(error)
            if raised is error:
                raise
            raise raised from error
        self.keep_training_state(training.get_state())
        return result


class TrainingRun:
    """One run of Adam over minibatches, which can be interrupted and resumed.

    Args:
        who: Name of the model, for messages.
        module: Owns the parameters; its sparse layers report factorisations that failed.
        count: Rows of the data, or which of the rows of several processes are here.
        plan: Limits and learning rates.
        task: Computes the loss.
        generator: Source of the order of the rows, and of the task's random numbers.
        state: The result of ``get_state`` of an earlier run that is to be resumed; None: start.
        parameters: Those that Adam moves, if they require gradients; None: all parameters of the module.
        graph: Replay steps as CUDA graphs. None: if the module is on a GPU and a step can be recorded.

    Raises:
        OptionError: No parameter requires a gradient; or there is no GPU for ``graph``.
    """

    def __init__(
        self,
        who: str,
        module: nn.Module,
        count: int | DataShare,
        plan: TrainingPlan,
        task: TrainingTask,
        generator: torch.Generator,
        state: dict[str, Any] | None = None,
        parameters: Sequence[nn.Parameter] | None = None,
        graph: bool | None = None,
    ) -> None:
        share = DataShare(Group(), 0, count, count) if isinstance(count, int) else count
        self.share, self.count = share, share.total
        #: The processes that take each step together; None: this one alone.
        self.group = share.group if share.group.size > 1 else None
        self.who, self.module, self.plan = who, module, plan
        self.task, self.generator = task, generator
        chosen = module.parameters() if parameters is None else parameters
        self.parameters = [parameter for parameter in chosen if parameter.requires_grad]
        if not self.parameters:
            raise _exceptions.OptionError(
                f"{who}: no parameter requires a gradient: there is nothing to fit."
            )
        self.layers = [part for part in module.modules() if isinstance(part, SparseLayer)]
        device = self.parameters[0].device
        _check_graph(who, graph, device)
        # Each step has another number of rows here if there are several processes.
        is_recorded = graph is not False and self.group is None
        self.graph, self.recorder = graph, _make_recorder(device) if is_recorded else None
        self.threads = ThreadChoice()
        #: One recording per size of minibatches; there are one or two sizes.
        self.replays: dict[int, _cuda_graph.ReplayableFunction] = {}
        self.minibatches: dict[int, Minibatch] = {}
        # On a GPU the learning rate is a tensor, so that graphs can read it. It is one without graphs too, so
        # that both give the same numbers.
        on_device = device.type == "cuda" or self.recorder is not None
        self.optimizer = AdamOptimizer(self.parameters, plan.lr, on_device)
        self.step, self.seconds, self.position = 0, 0.0, self.count
        self.order = torch.zeros(0, dtype=torch.int64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        if state is not None:
            self._resume(state)
        # All parameters are kept, because the task may move some that Adam does not.
        self.moved = list(module.parameters())
        self.good = [parameter.detach().clone() for parameter in self.moved]

    def get_state(self) -> dict[str, Any]:
        """Return copies of all that the rest of the run depends on besides the parameters."""
        return {
            "optimizer": self.optimizer.get_state(),
            "step": self.step,
            "seconds": self.seconds,
            "order": self.order,
            "position": self.position,
            "generator": self.generator.get_state(),
        }

    def _resume(self, state: dict[str, Any]) -> None:
        check_state(self.who, state, _STATE)
        if len(state["order"]) not in (0, self.count):
            raise _exceptions.OptionError(
                f"{self.who}: resume is of a run on {len(state['order'])} rows, Y has {self.count}."
            )
        self.optimizer.load_state(self.who, state["optimizer"])
        self.step, self.seconds, self.position = state["step"], state["seconds"], state["position"]
        self.order = state["order"].to(self.order.device)
        drawn = state["generator"].cpu()
        # A generator of a GPU cannot load the state of one of a CPU: the run then uses its own numbers.
        if len(drawn) == len(self.generator.get_state()):
            self.generator.set_state(drawn)

    def run(self, *, progress: bool = False, callback: Callback | None = None) -> FitResult:
        """Take steps until the plan or ``callback`` says to stop.

        Raises:
            FitError: The loss is not finite, or a factorisation failed; the parameters are then those of the
                last check of the loss.
            OptionError: ``graph`` is True, and a step cannot be recorded.
        """
        started, earlier, history = time.perf_counter(), self.seconds, list[float]()
        in_callbacks = 0.0  # seconds that do not count as training
        reason = self.plan.find_stop_reason(self.step, self.seconds)
        try:
            with _progress.show_progress(progress, self.plan.steps or 0, self.who) as update:
                taken = 0
                while reason is None:
                    with without_waiting():  # not around callbacks, where operators raise their errors
                        self.take_step()
                    taken += 1
                    reason = self.plan.find_stop_reason(self.step, self.seconds)
                    if self.step % self.plan.every and reason is None:
                        continue
                    history.append(self._check_progress(taken))
                    taken = 0
                    self.seconds = earlier + time.perf_counter() - started - in_callbacks
                    self._share_time()
                    reason = reason or self.plan.find_stop_reason(self.step, self.seconds)
                    update(self.step, history[-1])
                    called, storage = time.perf_counter(), self._describe_storage()
                    if callback is not None and callback(self.step, history[-1]):
                        reason = reason or "the callback asked to stop"
                    if storage != self._describe_storage():
                        self._forget_recordings()
                    in_callbacks += time.perf_counter() - called
        finally:
            self.close()
        last = history[-1] if history else math.nan
        return FitResult(last, history, self.step, False, reason, self.seconds - earlier)

    def take_step(self) -> None:
        """Take one step. It does not wait for the device, unless it is recorded."""
        rate = self.plan.compute_rate(self.step, self.seconds)
        self.optimizer.set_rate(rate)
        minibatch = self._draw_minibatch()
        self.task.prepare_step(self.step, rate / self.plan.lr)

        def compute() -> None:
            # Autocast caches rounded weights, and would not notice that the weights have changed since.
            torch.clear_autocast_cache()
            with self.threads.hold():
                with torch.enable_grad():
                    value = self._compute_loss(minibatch)
                gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
            is_recording = self.recorder is not None and self.recorder.recording
            self.optimizer.move(gradients, is_recording=is_recording)
            self.task.finish_step()
            self.total.add_(value.detach())

        try:
            self._compute_or_replay(len(minibatch.rows), compute)
        except _exceptions.ProcessGroupError:
            self._restore()
            raise
        except (_exceptions.LapgradError, _exceptions.TORCH_LINALG_ERROR) as error:
            raise self._make_error(str(error)) from error
        except _cuda_graph.CannotCaptureError as error:
            self._restore()
            raise _exceptions.OptionError(
                f"{self.who}: graph=True, but a step cannot be recorded as a CUDA graph: {error}. The "
                f"parameters are those of the start, or of the last check of the loss."
            ) from error
        self.step += 1

    def share_failure(self, error: Exception) -> BaseException:
        """Tell the other processes of an error that ends the fit; return the error to raise."""
        if self.group is None:
            return error
        # They are about to add up a loss and its gradient.
        numbers = 1 + sum(parameter.numel() for parameter in self.parameters)
        return self.group.fail(error, numbers, self.parameters[0].device)

    def _compute_loss(self, minibatch: Minibatch) -> Tensor:
        """Return the loss of a minibatch, of all processes together."""
        if self.group is None:
            return self.task.loss(minibatch)
        return sum_loss(self.group, lambda: self.task.loss(minibatch), self.parameters)

    def _share_time(self) -> None:
        """Let the clock of the first process decide when the time is over."""
        if self.group is not None:
            clock = torch.tensor([self.seconds], dtype=torch.float64)
            self.group.copy_from_first([clock])
            self.seconds = clock.item()

    def close(self) -> None:
        """Free what only steps need: gradients, recordings, minibatches."""
        self.optimizer.clear_gradients()
        torch.clear_autocast_cache()
        self._forget_recordings()
        self.minibatches.clear()

    def _compute_or_replay(self, rows: int, compute: Callable[[], None]) -> None:
        """Call ``compute``, or replay its recording for minibatches of this many rows."""
        if self.recorder is not None:
            if rows not in self.replays:
                self.replays[rows] = _cuda_graph.ReplayableFunction(compute, self.recorder)
            try:
                return self.replays[rows]()
            except _cuda_graph.CannotCaptureError:
                self._forget_recordings()
                if self.graph:
                    raise
                self.recorder = None
        return compute()

    def _describe_storage(self) -> list[object]:
        """Return what recordings depend on, which a callback may change."""
        return _cuda_graph.describe_storage(self.module) if self.replays else []

    def _forget_recordings(self) -> None:
        if self.recorder is not None and self.replays:
            self.replays.clear()
            self.recorder.close()

    def _check_progress(self, taken: int) -> float:
        """Return the mean loss of the ``taken`` steps since the last check, and keep the parameters as good.

        Nothing else in a run waits for the device.
        """
        try:
            mean = float(self.total) / taken
            for layer in self.layers:
                layer.check()
        except _exceptions.LapgradError as error:
            raise self._make_error(str(error)) from error
        finally:
            self.total.zero_()
        if not math.isfinite(mean):
            raise self._make_error(f"the loss is not finite ({mean})")
        with torch.no_grad():
            for kept, parameter in zip(self.good, self.moved, strict=True):
                kept.copy_(parameter)
        # Autograd does not notice that a replay has changed the parameters.
        increment_version(self.moved)
        return mean

    def _draw_minibatch(self) -> Minibatch:
        """Return the minibatch of the next step, with random numbers."""
        rows = self._draw_rows()
        known = self.minibatches.get(len(rows))
        if known is None:
            part = BatchPart(self.count / len(rows), self.share.group.is_first)
            known = Minibatch(torch.empty_like(rows), self.task.make_normals(len(rows)), part)
            self.minibatches[len(rows)] = known
        known.rows.copy_(rows)
        for numbers in known.normals:
            numbers.normal_(generator=self.generator)
        if self.group is None:
            return known
        here, own = self.share.select(rows)
        return Minibatch(own, [numbers[:, here] for numbers in known.normals], known.part)

    def _draw_rows(self) -> Tensor:
        """Return the next rows, in an order that is drawn anew for each pass over the data."""
        if self.position >= self.count:
            self.order = torch.randperm(self.count, generator=self.generator, device=self.order.device)
            self.position = 0
        rows = self.order[self.position : self.position + self.plan.batch]
        self.position += len(rows)
        return rows

    def _restore(self) -> None:
        with torch.no_grad():
            for kept, parameter in zip(self.good, self.moved, strict=True):
                parameter.copy_(kept)

    def _make_error(self, what: str) -> _exceptions.FitError:
        self._restore()
        return _exceptions.FitError(
            f"{self.who}: up to step {self.step + 1}: {what} The parameters are those of the last "
            f"check of the loss, every {self.plan.every} steps. A smaller lr may help.",
            self.step + 1,
        )


def _make_recorder(device: torch.device) -> _cuda_graph.Recorder | None:
    return _cuda_graph.CudaRecorder(device) if device.type == "cuda" else None


def _check_graph(who: str, graph: bool | None, device: torch.device) -> None:
    if graph is not None and not isinstance(graph, bool):
        raise _exceptions.OptionError(f"{who}: graph must be True, False or None, got {graph!r}.")
    if graph and device.type != "cuda":
        raise _exceptions.OptionError(
            f"{who}: graph=True is for models on a CUDA device, and this one is on {device}."
        )


def get_generator(given: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Return ``given``, or a new generator whose seed is drawn from torch's default generator.

    The default generator cannot be used itself, because the state of a run includes that of its generator.
    """
    if given is not None:
        return given
    return torch.Generator(device).manual_seed(int(torch.randint(1 << 62, ())))
