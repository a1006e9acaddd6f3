"""The fit of models whose loss is estimated from minibatches."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lapgrad.distributed.losses import sum_loss
from lapgrad.models._deep import start as _start
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models._gp.spread_rows import make_shared_generator
from lapgrad.models._training import minibatches as _minibatches
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.plan import make_plan
from lapgrad.models._training.result import FitResult
from lapgrad.models._training.shares import BatchPart, DataShare

_STEPS = 5000


class TrainedModel(_minibatches.MinibatchModel, nn.Module, abc.ABC):
    """A model of layers that is learned by Adam on minibatches.

    Attributes:
        X: (n, d), the inputs.
        layers: The layers, each a ``SparseLayer``, from the first to the last.
    """

    X: Tensor
    layers: nn.ModuleList
    #: Which of the rows of all processes are here; None: all.
    share: DataShare | None = None

    def _list_layers(self) -> list[SparseLayer]:
        return [cast(SparseLayer, layer) for layer in self.layers]

    @abc.abstractmethod
    def _allocate_normals(self, samples: int, count: int) -> list[Tensor]:
        """Return uninitialised tensors for the normal numbers that an estimate from ``count`` rows takes.

        Rows are their second dimension.
        """

    @abc.abstractmethod
    def _estimate_loss(
        self, rows: Tensor | slice, normals: Sequence[Tensor], part: BatchPart | None = None
    ) -> Tensor:
        """Return the loss, estimated from some rows and normal numbers, without waiting for the device.

        ``part``: The weight of the rows, if other processes have rows of the minibatch, too. The loss is then
        the sum over the processes.
        """

    def loss(
        self,
        *,
        samples: int = 1,
        batch: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return an estimate of the bound of the negative log likelihood of all observations: a scalar.

            sum_l KL(q(u_l) || p(u_l)) - n / batch sum_i E log p(y_i | f_i)

        The sum is over a batch of the data; the expectation over inner layers, and where it has no closed
        form that over the last one, is an average of samples. Value and gradient are random and unbiased.

        Args:
            samples: How many samples of the inner layers for each row.
            batch: How many rows, chosen at random; None, or n and more: all of them.
            generator: Source of random numbers, or a seed; None: torch's own.

        Raises:
            NotPositiveDefiniteError: The kernel matrix of the inducing inputs of a layer is not positive
                definite, by more than rounding.
            NonFiniteError: A kernel gives NaN or infinity.
        """
        who, n = f"{type(self).__name__}.loss", self._count_rows()
        _start.check_positive(who, samples=samples, batch=n if batch is None else batch)
        group = None if self.share is None else self.share.group
        source = make_shared_generator(who, generator, self.X.device, group)
        rows: Tensor | slice = slice(None)
        if batch is not None and batch < n:
            rows = torch.randperm(n, generator=source, device=self.X.device)[:batch]
        count = n if batch is None else min(batch, n)
        normals = [tensor.normal_(generator=source) for tensor in self._allocate_normals(samples, count)]
        value = self._estimate_shared_loss(rows, normals, n / count)
        for layer in self._list_layers():
            layer.check()
        return value

    def _estimate_shared_loss(self, rows: Tensor | slice, normals: Sequence[Tensor], weight: float) -> Tensor:
        """Return the loss from rows that are numbered over all processes, if there are several."""
        share = self.share
        if share is None:
            return self._estimate_loss(rows, normals)
        numbers = torch.arange(share.total, device=self.X.device)[rows] if isinstance(rows, slice) else rows
        here, own = share.select(numbers)
        part = BatchPart(weight, share.group.is_first)
        return sum_loss(
            share.group,
            lambda: self._estimate_loss(own, [tensor[:, here] for tensor in normals], part),
            list(self.parameters()),
        )

    def _count_rows(self) -> int:
        """Return how many rows there are, on all processes together."""
        return len(self.X) if self.share is None else self.share.total

    def forward(self) -> Tensor:
        """Return the same as ``loss()``."""
        return self.loss()

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
            batch: Rows of data in each step; all of them if there are no more. With a group of p processes a
                step is that of one process with p times as many rows, taken from those of all processes.
            samples: How many samples of the inner layers for each row.
            lr: Learning rate at the start.
            final_lr: Learning rate at the end, relative to the start; it decreases along half a cosine.
            generator: Source of random numbers, or a seed; None: a new one, with a seed from torch's own.
                With a group the same on all processes.
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
        who, n = f"{type(self).__name__}.fit", self._count_rows()
        _start.check_positive(who, samples=samples, batch=batch)
        if steps is None and epochs is None and seconds is None:
            steps = _STEPS
        group = None if self.share is None else self.share.group
        rows = batch * (1 if group is None else group.size)
        plan = make_plan(who, n, rows, steps, epochs, seconds, lr, final_lr, every)
        source = _minibatches.get_generator(
            make_shared_generator(who, generator, self.X.device, group), self.X.device
        )
        task = _Task(self, samples)
        training = _minibatches.TrainingRun(
            who, self, self.share or n, plan, task, source, resume, graph=graph
        )
        return self._run_training(training, progress, callback)


class _Task(_minibatches.TrainingTask):
    """Minimises the bound by Adam."""

    def __init__(self, model: TrainedModel, samples: int) -> None:
        self.model, self.samples = model, samples

    def make_normals(self, count: int) -> list[Tensor]:
        """Return uninitialised tensors for the random numbers of a step."""
        return self.model._allocate_normals(self.samples, count)

    def loss(self, minibatch: _minibatches.Minibatch) -> Tensor:
        """Return the loss of all data, estimated from the minibatch."""
        part = None if self.model.share is None else minibatch.part
        return self.model._estimate_loss(minibatch.rows, minibatch.normals, part)
