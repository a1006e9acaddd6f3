"""The fit of models whose loss is estimated from minibatches."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad.models import _checks
from lapgrad.models._deep import start as _start
from lapgrad.models._training import minibatches as _minibatches
from lapgrad.models._training.fitting import Callback, FitResult
from lapgrad.models._training.plan import make_plan

_STEPS = 5000


class TrainedModel(_minibatches.MinibatchModel, nn.Module, abc.ABC):
    """A model of layers that is learned by Adam on minibatches.

    Attributes:
        X: (n, d), the inputs.
    """

    X: Tensor

    @abc.abstractmethod
    def _make_task(self, samples: int) -> _minibatches.TrainingTask:
        """Return the task that estimates the loss with so many samples of the inner layers."""

    def fit(
        self,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        seconds: float | None = None,
        batch: int = 1000,
        samples: int = 1,
        lr: float = 0.01,
        final_lr: float = 0.01,
        generator: torch.Generator | int | None = None,
        progress: bool = False,
        callback: Callback | None = None,
        every: int = 50,
        resume: dict[str, Any] | None = None,
        graph: bool | None = None,
    ) -> FitResult:
        """Learn all parameters, inducing inputs and the distributions of the layers by Adam on minibatches.

        Between two checks of the loss nothing waits for a GPU.

        Args:
            steps: How many minibatches.
            epochs: How many passes over the data, in place of ``steps``.
            seconds: How long. If none of the three is given: 5000 steps; if two are, the first reached
                counts.
            batch: Rows of data in each step; all of them if there are no more.
            samples: How many samples of the inner layers for each row.
            lr: Learning rate at the start.
            final_lr: Learning rate at the end, relative to the start; it decreases along half a cosine.
            generator: Source of random numbers, or a seed; None: a new one, with a seed from torch's own.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called every ``every`` steps with the step and the mean loss of the steps before; True
                stops the fit.
            every: Steps between two checks of the loss.
            resume: The result of ``training_state``: that fit is continued, up to these limits.
            graph: Replay each step as one CUDA graph, which takes a fraction of the time of a thousand
                launches and gives the same numbers. Kernels and networks must then do the same in each step.
                None: on a GPU, if a step can be recorded. True: raise an error if it cannot. False: never.

        Returns:
            Losses are estimates of the bound of all observations, each the mean over ``every`` steps.

        Raises:
            FitError: The loss is not finite, or a factorisation failed; the parameters are then those of the
                last check of the loss.
            OptionError: An argument is not one of those above, or there is nothing to learn.
        """
        who, n = f"{type(self).__name__}.fit", len(self.X)
        _start.check_positive(who, samples=samples, batch=batch)
        if steps is None and epochs is None and seconds is None:
            steps = _STEPS
        plan = make_plan(who, n, batch, steps, epochs, seconds, lr, final_lr, every)
        source = _minibatches.get_generator(
            _checks.make_generator(who, generator, self.X.device), self.X.device
        )
        task = self._make_task(samples)
        training = _minibatches.TrainingRun(who, self, n, plan, task, source, resume, graph=graph)
        return self._run_training(training, progress, callback)
