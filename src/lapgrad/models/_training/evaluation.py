"""The loss of a fit and its gradient: computed in each call, or replayed from a CUDA graph.

An evaluation of a sparse Gaussian process with a few hundred inducing inputs keeps a GPU busy for one
millisecond, but the host needs ten to launch it. The parameters keep their addresses during a fit, so one
evaluation can be recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp.evaluation import Checks
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training.thread_choice import ThreadChoice

#: Give up recording after this many evaluations in a row whose replay failed its checks.
_PATIENCE = 5


class Evaluation:
    """Computes a loss and its gradient.

    Args:
        loss: Returns a scalar.
        parameters: The tensors to differentiate with respect to.
    """

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
        self._loss, self._parameters = loss, parameters
        self._threads = ThreadChoice()

    def __call__(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss, and one gradient per parameter: None if the loss does not depend on it."""
        # Autocast caches rounded weights, and would not notice that the weights have changed since.
        torch.clear_autocast_cache()
        with self._threads.hold():
            with torch.enable_grad():
                value = self._loss()
            return value.detach(), torch.autograd.grad(value, self._parameters, allow_unused=True)

    def close(self) -> None:
        """Free memory that is kept between evaluations."""
        torch.clear_autocast_cache()


class ReplayedEvaluation(Evaluation):
    """Replays a loss and its gradient from a CUDA graph. The next call overwrites the returned tensors.

    Checks that a sparse Gaussian process defers (``fused/_sgp/evaluation.py``) are read after each replay. If
    one fails, the evaluation is repeated without a recording, which raises any error, and the next evaluation
    is recorded anew. It is also recorded anew if parameters or data have other addresses.

    Args:
        module: Its ``jitter`` is set by each evaluation; its ``evaluation`` is used by the loss.
        loss: Returns a scalar, by the same operations in each call.
        parameters: The tensors to differentiate with respect to. They keep their addresses.
        recorder: Makes the recordings.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[], Tensor],
        parameters: Sequence[Tensor],
        recorder: _cuda_graph.Recorder,
    ) -> None:
        super().__init__(loss, parameters)
        self._module: Any = module
        self._recorder = recorder
        self._replay: _cuda_graph.ReplayableFunction | None
        self._replay = _cuda_graph.ReplayableFunction(self._evaluate, recorder)
        self._failures = 0
        self._storage = _cuda_graph.describe_storage(module)
        self._results: tuple[Tensor, Sequence[Tensor | None]]
        self._checks: list[Checks]
        self._jitter = 0.0

    def __call__(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss, and one gradient per parameter: None if the loss does not depend on it."""
        if self._replay is None:
            return super().__call__()
        storage = _cuda_graph.describe_storage(self._module)
        if storage != self._storage:
            self._storage = storage
            self._start_recording_anew()
        try:
            self._replay()
        except _cuda_graph.CannotCaptureError:
            self._replay = None
        if self._replay is None:  # outside of the except clause, so that the exception's frames are freed
            return super().__call__()
        if self._is_valid():
            self._failures = 0
            self._module.jitter = self._jitter
            return self._results
        self._failures += 1
        self._start_recording_anew()
        if self._failures >= _PATIENCE:
            self._replay = None
        return super().__call__()

    def close(self) -> None:
        """Free the recording and its memory."""
        super().close()
        self._replay = None
        self._recorder.close()

    def _start_recording_anew(self) -> None:
        """Drop the recording; the next calls are rehearsals again."""
        self._recorder.close()
        self._replay = _cuda_graph.ReplayableFunction(self._evaluate, self._recorder)

    def _evaluate(self) -> None:
        with without_waiting(), self._module.evaluation.defer_checks() as checks:
            self._results = super().__call__()
        self._checks, self._jitter = checks, self._module.jitter

    def _is_valid(self) -> bool:
        """Return whether the last replay passed all checks."""
        try:
            return all(check.are_passed() for check in self._checks)
        except _exceptions.LapgradError:  # without a recording, jitter may help
            return False
