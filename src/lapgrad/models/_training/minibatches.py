"""Learning from minibatches: Adam on an estimate of the loss, and no look at the device but once in a while.

A step launches its work and goes on; every ``every`` steps the mean loss is read, and with it whether
anything has failed since. Then also callbacks and progress bars hear of it, and the parameters are kept as
the last good ones.

On a GPU a step is replayed as one CUDA graph, after a few that were not (``_captured``). So all that differs
between two steps is in tensors that stay where they are, and are filled before the step: rows, random
numbers, rates. Random numbers are not drawn within a graph: their generator would have to be known to each
graph, and its state between steps would be that of the graph. Drawn before, in the order in which a step
needs them, they are the same with graphs and without, and a run that is taken up again goes on with them.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from lapgrad import _errors
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models._training import cuda_graph as _captured
from lapgrad.models._training import progress as _progress
from lapgrad.models._training.fitting import Callback, FitResult
from lapgrad.models._training.plan import Plan

#: The entries of ``training_state``.
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
    """What a step is about: always the same tensors, with other numbers in each step.

    Attributes:
        rows: (b,) of the data.
        normals: Standard normal numbers.
    """

    rows: Tensor
    normals: list[Tensor]


class Task(abc.ABC):
    """What is learned from minibatches, in the parts of a step."""

    @abc.abstractmethod
    def normals(self, count: int) -> list[Tensor]:
        """Tensors for the random numbers of minibatches of so many rows; what is in them does not matter."""

    def before(self, step: int, rate: float) -> None:  # noqa: B027  (most tasks have nothing to fill)
        """Fill tensors that differ between steps.

        Args:
            step: Its number.
            rate: The learning rate, relative to that of the start.
        """

    @abc.abstractmethod
    def loss(self, minibatch: Minibatch) -> Tensor:
        """A scalar. It does the same in every step, but for numbers in tensors, and so does ``after``."""

    def after(self) -> None:  # noqa: B027  (nor to do)
        """What is left to do when Adam has moved its parameters."""


class Resumable:
    """A model whose ``fit`` can be left and taken up again."""

    _training: dict[str, Any] | None = None

    def _learned(self, training: Training, progress: bool, callback: Callback | None) -> FitResult:
        """The whole of a fit; at each look its state is kept."""

        def told(step: int, value: float) -> bool | None:
            self._training = training.state()
            return None if callback is None else callback(step, value)

        result = training.run(progress=progress, callback=told)
        self._training = training.state()
        return result

    def training_state(self) -> dict[str, Any]:
        """State of the optimiser, the order of data, random numbers: for ``fit(..., resume=...)``.

        Of the last look at the loss; tensors, numbers and text, which ``torch.save`` takes.

        Raises:
            OptionError: The model has not been fitted.
        """
        if self._training is None:
            raise _errors.OptionError(f"{type(self).__name__}.training_state: fit has not been called.")
        return self._training


class Training:
    """One run of Adam over minibatches, which can be interrupted and taken up again.

    Args:
        who: Name of the model, for messages.
        module: Owns the parameters; its sparse layers are asked whether their factorisations failed.
        count: Rows of the data.
        plan: How long and how fast.
        task: What is learned.
        generator: Source of the order of the rows, and of the task's random numbers.
        state: What ``state`` of an earlier run has returned, to go on from there; None: start.
        parameters: Those that Adam moves, if they require gradients; None: all of the module.
        graph: Replay steps as CUDA graphs. None: if the module is on a GPU and a step can be recorded.

    Raises:
        OptionError: No parameter requires a gradient; or there is no GPU for ``graph``.
    """

    def __init__(
        self,
        who: str,
        module: nn.Module,
        count: int,
        plan: Plan,
        task: Task,
        generator: torch.Generator,
        state: dict[str, Any] | None = None,
        parameters: Sequence[nn.Parameter] | None = None,
        graph: bool | None = None,
    ) -> None:
        self.who, self.module, self.count, self.plan = who, module, count, plan
        self.task, self.generator = task, generator
        chosen = module.parameters() if parameters is None else parameters
        self.parameters = [parameter for parameter in chosen if parameter.requires_grad]
        if not self.parameters:
            raise _errors.OptionError(f"{who}: no parameter requires a gradient: there is nothing to fit.")
        self.layers = [part for part in module.modules() if isinstance(part, SparseLayer)]
        device = self.parameters[0].device
        _check_graph(who, graph, device)
        self.graph, self.recorder = graph, None if graph is False else _recorder(device)
        self.repeated: dict[int, _captured.Repeated] = {}
        self.minibatches: dict[int, Minibatch] = {}
        self.rate = plan.lr
        # On a GPU Adam reads its learning rate from there, also without graphs: the same numbers in any case.
        there = device.type == "cuda" or self.recorder is not None
        self.lr = torch.tensor(plan.lr, dtype=torch.float32, device=device) if there else None
        first = plan.lr if self.lr is None else self.lr
        self.optimizer = torch.optim.Adam(self.parameters, first, fused=there or None)
        self.step, self.seconds, self.position = 0, 0.0, count
        self.order = torch.zeros(0, dtype=torch.int64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        if state is not None:
            self._take_up(state)
        # All parameters: some may be moved by other means than gradients.
        self.moved = list(module.parameters())
        self.good = [parameter.detach().clone() for parameter in self.moved]

    def state(self) -> dict[str, Any]:
        """Everything the rest of the run depends on besides the parameters: tensors and numbers.

        They are copies: later steps do not change them.
        """
        optimizer = self.optimizer.state_dict()
        known = copy.deepcopy(optimizer["state"])
        # As of any run, on any device, with graphs or without.
        groups = [{**group, "lr": self.rate, "capturable": False} for group in optimizer["param_groups"]]
        return {
            "optimizer": {**optimizer, "state": known, "param_groups": groups},
            "step": self.step,
            "seconds": self.seconds,
            "order": self.order,
            "position": self.position,
            "generator": self.generator.get_state(),
        }

    def _take_up(self, state: dict[str, Any]) -> None:
        known = state if isinstance(state, dict) else {}
        for name, kind in _STATE.items():
            if not isinstance(known.get(name), kind):
                raise _errors.OptionError(
                    f"{self.who}: resume must be what training_state has returned: missing entry {name!r}."
                )
        if len(state["order"]) not in (0, self.count):
            raise _errors.OptionError(
                f"{self.who}: resume is of a run on {len(state['order'])} rows, Y has {self.count}."
            )
        self._take_up_optimizer(state["optimizer"])
        self.step, self.seconds, self.position = state["step"], state["seconds"], state["position"]
        self.order = state["order"].to(self.order.device)
        drawn = state["generator"].cpu()
        # Generators of CPUs and GPUs have nothing in common: there, the numbers are those of this run's own.
        if len(drawn) == len(self.generator.get_state()):
            self.generator.set_state(drawn)

    def _take_up_optimizer(self, state: dict[str, Any]) -> None:
        """How Adam computes is up to this run and its device; what it knows comes from the other one."""
        (own,) = self.optimizer.param_groups
        chosen = {name: own[name] for name in ("fused", "foreach", "capturable")}
        groups = [{**group, **chosen, "lr": self.rate} for group in state["param_groups"]]
        known = copy.deepcopy(state["state"])  # Adam would go on in the tensors of the caller
        self.optimizer.load_state_dict({**state, "state": known, "param_groups": groups})
        self._set_rate(self.rate)
        if self.lr is None:
            for of_parameter in self.optimizer.state.values():
                of_parameter["step"] = of_parameter["step"].cpu()

    def run(self, *, progress: bool = False, callback: Callback | None = None) -> FitResult:
        """Learn until the plan says to stop, or ``callback`` does.

        Raises:
            FitError: The loss is not finite, or a factorisation failed; the parameters are then those of the
                last look at the loss.
            OptionError: Steps were to be replayed as a graph, and cannot be.
        """
        started, earlier, history = time.perf_counter(), self.seconds, list[float]()
        elsewhere = 0.0  # in callbacks, which may save, test, draw: no time of learning
        reason = self.plan.reached(self.step, self.seconds)
        try:
            with _progress.bar(progress, self.plan.steps or 0, self.who) as show:
                taken = 0
                while reason is None:
                    with without_waiting():  # callbacks do: they hear of what fails
                        self.move()
                    taken += 1
                    reason = self.plan.reached(self.step, self.seconds)
                    if self.step % self.plan.every and reason is None:
                        continue
                    history.append(self._look(taken))
                    taken = 0
                    self.seconds = earlier + time.perf_counter() - started - elsewhere
                    reason = reason or self.plan.reached(self.step, self.seconds)
                    show(self.step, history[-1])
                    called, places = time.perf_counter(), self._places()
                    if callback is not None and callback(self.step, history[-1]):
                        reason = reason or "the callback asked to stop"
                    if places != self._places():
                        self._forget_recordings()
                    elsewhere += time.perf_counter() - called
        finally:
            self.close()
        last = history[-1] if history else math.nan
        return FitResult(last, history, self.step, False, reason, self.seconds - earlier)

    def move(self) -> None:
        """One step. Nothing waits for the device, but where a step is recorded."""
        self._set_rate(self.plan.rate(self.step, self.seconds))
        minibatch = self._minibatch()
        self.task.before(self.step, self.rate / self.plan.lr)

        def compute() -> None:
            # Autocast would go on with the weights as they were when it rounded them.
            torch.clear_autocast_cache()
            with torch.enable_grad():
                value = self.task.loss(minibatch)
            found = torch.autograd.grad(value, self.parameters, allow_unused=True)
            for parameter, gradient in zip(self.parameters, found, strict=True):
                parameter.grad = gradient
            # Torch asks for it in a graph, and warns of it elsewhere.
            recording = self.recorder is not None and self.recorder.recording
            self.optimizer.param_groups[0]["capturable"] = recording
            self.optimizer.step()
            self.task.after()
            self.total.add_(value.detach())

        try:
            self._repeat(len(minibatch.rows), compute)
        except (_errors.LapgradError, _errors.TORCH_LINALG_ERROR) as error:
            raise self._failed(str(error)) from error
        except _captured.CannotCaptureError as error:
            self._restore()
            raise _errors.OptionError(
                f"{self.who}: graph=True, but a step cannot be recorded as a CUDA graph: {error}. The "
                f"parameters are those of the start, or of the last look at the loss."
            ) from error
        self.step += 1

    def close(self) -> None:
        """Give back what only steps need: gradients, recordings, minibatches."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.clear_autocast_cache()
        self._forget_recordings()
        self.minibatches.clear()

    def _repeat(self, rows: int, compute: Callable[[], None]) -> None:
        """``compute``, or its recording: one for each size of minibatches, of which there are few."""
        if self.recorder is not None:
            if rows not in self.repeated:
                self.repeated[rows] = _captured.Repeated(compute, self.recorder)
            try:
                return self.repeated[rows]()
            except _captured.CannotCaptureError:
                self._forget_recordings()
                if self.graph:
                    raise
                self.recorder = None
        return compute()

    def _places(self) -> list[object]:
        """What recordings rely on, and a callback may have changed."""
        return _captured.places(self.module) if self.repeated else []

    def _forget_recordings(self) -> None:
        if self.recorder is not None and self.repeated:
            self.repeated.clear()
            self.recorder.close()

    def _look(self, taken: int) -> float:
        """The mean loss of the steps since the last look; the one place that waits for the device."""
        try:
            with _captured.undisturbed():
                mean = float(self.total) / taken
                for layer in self.layers:
                    layer.check()
        except _errors.LapgradError as error:
            raise self._failed(str(error)) from error
        finally:
            self.total.zero_()
        if not math.isfinite(mean):
            raise self._failed(f"the loss is not finite ({mean})")
        with torch.no_grad():
            for kept, parameter in zip(self.good, self.moved, strict=True):
                kept.copy_(parameter)
        # A replay changes parameters without a word to autograd.
        increment_version(self.moved)
        return mean

    def _set_rate(self, rate: float) -> None:
        self.rate = rate
        if self.lr is not None:
            self.lr.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate if self.lr is None else self.lr

    def _minibatch(self) -> Minibatch:
        """The next rows, and random numbers for them."""
        rows = self._rows()
        known = self.minibatches.get(len(rows))
        if known is None:
            known = Minibatch(torch.empty_like(rows), self.task.normals(len(rows)))
            self.minibatches[len(rows)] = known
        known.rows.copy_(rows)
        for numbers in known.normals:
            numbers.normal_(generator=self.generator)
        return known

    def _rows(self) -> Tensor:
        """The next rows in an order that is drawn anew for each pass over the data."""
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

    def _failed(self, what: str) -> _errors.FitError:
        self._restore()
        return _errors.FitError(
            f"{self.who}: up to step {self.step + 1}: {what} The parameters are those of the last "
            f"look at the loss, every {self.plan.every} steps. A smaller lr may help.",
            self.step + 1,
        )


def _recorder(device: torch.device) -> _captured.Recorder | None:
    return _captured.CudaRecorder(device) if device.type == "cuda" else None


def _check_graph(who: str, graph: bool | None, device: torch.device) -> None:
    if graph is not None and not isinstance(graph, bool):
        raise _errors.OptionError(f"{who}: graph must be True, False or None, got {graph!r}.")
    if graph and device.type != "cuda":
        raise _errors.OptionError(
            f"{who}: graph=True is for models on a CUDA device, and this one is on {device}."
        )


def own_generator(given: torch.Generator | None, device: torch.device) -> torch.Generator:
    """``given``, or one with a seed from torch's own: its state can be kept with a run."""
    if given is not None:
        return given
    return torch.Generator(device).manual_seed(int(torch.randint(1 << 62, ())))
