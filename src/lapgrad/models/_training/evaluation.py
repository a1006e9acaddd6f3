"""The loss of a fit and its gradient: evaluated, or replayed from a CUDA graph.

A sparse Gaussian process of some hundred inducing inputs keeps a GPU busy for a millisecond, and the host,
which makes the launches, for ten. Parameters of a fit stay where they are: one evaluation can be recorded and
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.fused._sgp.evaluation import DeferredChecks
from lapgrad.models._training import cuda_graph as _captured

#: Evaluations in a row that a recording was of no use for: then it is given up.
_PATIENCE = 5


class Evaluation:
    """A loss and its gradient.

    Args:
        loss: A scalar.
        parameters: What it is differentiated for.
    """

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
        self._loss, self._parameters = loss, parameters

    def __call__(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The loss, and one gradient per parameter: None where it does not depend on it."""
        # Autocast would go on with the weights of networks as they were when it rounded them.
        torch.clear_autocast_cache()
        with torch.enable_grad():
            value = self._loss()
        return value.detach(), torch.autograd.grad(value, self._parameters, allow_unused=True)

    def close(self) -> None:
        """It is not called any more."""
        torch.clear_autocast_cache()


class Replayed(Evaluation):
    """The same, from a recording. What it returns is overwritten by the next call.

    Checks of the sparse Gaussian process (``fused._sgp.evaluation``) are read after a replay. If one was not
    passed, or an operator has failed, the evaluation is repeated without a recording,
    which also raises what is to be raised, and the next one is recorded anew. So it is if parameters or data
    have moved to other places.

    Args:
        module: Whose attribute ``jitter`` an evaluation sets, and whose ``evaluation`` the loss uses.
        loss: A scalar, by the same operations in each call.
        parameters: What it is differentiated for. They stay where they are.
        recorder: Where it is recorded.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[], Tensor],
        parameters: Sequence[Tensor],
        recorder: _captured.Recorder,
    ) -> None:
        super().__init__(loss, parameters)
        self._module: Any = module
        self._recorder = recorder
        self._repeated: _captured.Repeated | None = _captured.Repeated(self._evaluate, recorder)
        self._useless = 0
        self._places = _captured.places(module)
        self._results: tuple[Tensor, Sequence[Tensor | None]]
        self._checks: list[DeferredChecks]
        self._jitter = 0.0

    def __call__(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The loss, and one gradient per parameter: None where it does not depend on it."""
        if self._repeated is None:
            return super().__call__()
        places = _captured.places(self._module)
        if places != self._places:
            self._places = places
            self._forget()
        try:
            self._repeated()
        except _captured.CannotCaptureError:
            self._repeated = None
        if self._repeated is None:  # what the exception held is free again
            return super().__call__()
        if self._were_right():
            self._useless = 0
            self._module.jitter = self._jitter
            return self._results
        self._useless += 1
        self._forget()
        if self._useless >= _PATIENCE:
            self._repeated = None
        return super().__call__()

    def close(self) -> None:
        """Give memory back."""
        super().close()
        self._repeated = None
        self._recorder.close()

    def _forget(self) -> None:
        """The next calls are rehearsals again."""
        self._recorder.close()
        self._repeated = _captured.Repeated(self._evaluate, self._recorder)

    def _evaluate(self) -> None:
        with without_waiting(), self._module.evaluation.defer_checks() as checks:
            self._results = super().__call__()
        self._checks, self._jitter = checks, self._module.jitter

    def _were_right(self) -> bool:
        try:
            with _captured.undisturbed():
                return all(check.are_passed() for check in self._checks)
        except _errors.LapgradError:  # without a recording there may be a way out: jitter
            return False
