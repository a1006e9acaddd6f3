"""One fold of a sparse Gaussian process regression: split, model, learning with checkpoints, test.

A fold that was interrupted goes on from its checkpoint and ends at the same figures, to the last bit: the
checkpoint holds the parameters and the state of the optimiser, and the rest follows from the seed.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.models import SparseGPRegression
from lapgrad.models._storage.archive import read_archive, write_archive

PARTS = 10
"""A tenth of the data is kept for the test: there are ten different folds."""

SHOWN_EVERY = {"cpu": 1, "cuda": 50}
"""Steps between two looks at the loss: on a GPU a look waits for all that was asked of it."""

KEPT_EVERY = {"adam": 250, "lbfgs": 1000}
"""Steps between two checkpoints. L-BFGS starts with an empty memory after each, and then goes slowly."""

_JITTER = 1e-6
_LITTLE_JITTER = 1e-8
_NO_NOISE = ("naval1", "naval2")
"""A simulation: the noise that is learned falls to 1e-6 of the variance and below. Jitter is noise of the
inducing variables, and must not be more."""

_CHECKPOINT = ("of", "parameters", "optimizer", "best", "done", "seconds", "finished")
"""What is in a checkpoint."""

DTYPES = {"float64": torch.float64, "float32": torch.float32}

#: Called with the number of steps made and the loss.
Report = Callable[[int, float], None]
#: Asked after each step; True: stop here.
Stop = Callable[[], bool]


@dataclass(frozen=True)
class LearningOptions:
    """How folds are learned: what has to be the same for figures of one table.

    Attributes:
        optimizer: "adam", or "lbfgs".
        steps: Evaluations of the criterion and its gradient; fewer if L-BFGS has converged.
        lr: Step rate of Adam; the length of the first step of L-BFGS.
        seed: Of the order of the data, and of the choice of inducing inputs.
        dtype: A key of ``DTYPES``.
        jitter: Added to the diagonal of the kernel matrix of inducing inputs, in units of its mean; None: as
            the data want it.
        lr_end: What Adam's step rate falls to, by the same factor in each step; None: it stays.
    """

    optimizer: str = "adam"
    steps: int = 3000
    lr: float = 1e-2
    seed: int = 0
    dtype: str = "float64"
    jitter: float | None = None
    lr_end: float | None = None

    def rate(self, step: int) -> float:
        """Adam's in a step.

        Example:
            >>> [f"{LearningOptions(steps=2, lr=1e-2, lr_end=1e-4).rate(step):.4f}" for step in range(3)]
            ['0.0100', '0.0010', '0.0001']
        """
        return self.lr if self.lr_end is None else self.lr * (self.lr_end / self.lr) ** (step / self.steps)

    def for_task(self, dataset: str) -> LearningOptions:
        """With the jitter of these data."""
        if self.jitter is not None:
            return self
        return dataclasses.replace(self, jitter=_LITTLE_JITTER if dataset in _NO_NOISE else _JITTER)


@dataclass(frozen=True)
class Fold:
    """A task, the number of inducing inputs, and which tenth of the data is kept for the test."""

    dataset: str
    inducing: int
    fold: int

    def __str__(self) -> str:
        return f"{self.dataset}, U = {self.inducing}, fold {self.fold + 1}"

    @property
    def file(self) -> str:
        """The name of its checkpoint."""
        return f"{self.dataset}-{self.inducing}-{self.fold}.pt"


class Interrupted(Exception):  # noqa: N818  (no error: a wish)
    """Somebody asked to stop; the checkpoint is written."""


def split_rows(n: int, fold: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows to test with, from an order that depends on the seed alone.

    Example:
        >>> train, test = split_rows(20, fold=3, seed=0)
        >>> len(train), len(test), len(set(train.tolist()) & set(test.tolist()))
        (18, 2, 0)
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    parts = list(order.tensor_split(PARTS))
    test = parts.pop(fold)
    return torch.cat(parts), test


def learn_fold(
    which: Fold,
    how: LearningOptions,
    data: tuple[Tensor, Tensor],
    device: str,
    checkpoints: Path,
    report: Report,
    stop: Stop,
) -> dict[str, Any]:
    """Learns one fold and tests it; returns the row of the results.

    Of Adam's steps the one with the least criterion counts.

    Args:
        which: The fold.
        how: How to learn.
        data: All inputs (n, d) and targets (n,).
        device: Where to compute.
        checkpoints: The folder of checkpoints. If there is one of this fold, it goes on from there.
        report: Called every few steps.
        stop: Asked after each step.

    Raises:
        Interrupted: ``stop`` asked for it.
        FitError: The criterion cannot be evaluated.
        FileFormatError: The checkpoint does not belong to this fold.
    """
    how = how.for_task(which.dataset)
    X, y = (values.to(DTYPES[how.dtype]) for values in data)
    train, test = split_rows(len(X), which.fold, how.seed)
    model = make_model(X[train], y[train], which, how).to(device)
    run = _Run(which, how, model, checkpoints / which.file, report, stop)
    with warnings.catch_warnings():
        # Matrices on the way that needed more jitter do not matter; the last one is in the row.
        warnings.simplefilter("ignore", _errors.JitterWarning)
        run.to_the_end()
        figures = test_model(run.model, X[test].to(device), y[test].to(device))
    run.checkpoint.unlink(missing_ok=True)
    return {
        **dataclasses.asdict(which),
        **dataclasses.asdict(how),
        **figures,
        "seconds": run.seconds,
        "seconds_per_step": run.seconds / run.done,
        "steps_made": run.done,
        "rows": len(train),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def make_model(X: Tensor, y: Tensor, which: Fold, how: LearningOptions) -> SparseGPRegression:
    """The model before learning, on the CPU: the same on every device.

    Columns have mean 0 and variance 1 (of the training data). Inducing inputs are rows of the data that are
    far from each other; lengthscales are √d, the distance of neighbours in d dimensions; noise is a tenth of
    the variance. All but the inducing inputs and the mean are learned as logarithms.
    """
    jitter = how.for_task(which.dataset).jitter or 0.0
    return SparseGPRegression(
        X, y, inducing=which.inducing, normalise=True, jitter=jitter, generator=how.seed + which.fold
    )


@torch.no_grad()
def test_model(model: SparseGPRegression, X: Tensor, y: Tensor) -> dict[str, float]:
    """Root mean squared error and mean log density of test targets, in their own units, and the fit."""
    loss = model.loss().item()
    mean, _ = model.predict(X)
    return {
        "rmse": (mean - y).double().square().mean().sqrt().item(),
        "tll": model.log_prob(X, y).double().mean().item(),
        "noise": model.noise_var.item(),
        "loss": loss,
        "added_jitter": model.jitter,
    }


class _Best:
    """The parameters with the least loss so far. Steps of Adam that do not get shorter jump about the end.

    All on the device of the model: nobody waits to know which they are.
    """

    def __init__(self, model: SparseGPRegression) -> None:
        self.parameters = dict(model.named_parameters())
        self.loss = torch.full((), math.inf, dtype=model.X.dtype, device=model.X.device)
        self.kept = {name: value.detach().clone() for name, value in self.parameters.items()}

    def see(self, loss: Tensor) -> None:
        """The loss of the present parameters."""
        better = loss < self.loss
        self.loss = torch.where(better, loss, self.loss)
        for name, value in self.parameters.items():
            self.kept[name] = torch.where(better, value.detach(), self.kept[name])

    @torch.no_grad()
    def restore(self) -> None:
        """The model gets them back."""
        for name, value in self.parameters.items():
            value.copy_(self.kept[name])

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {**self.kept, "": self.loss}

    def load(self, state: dict[str, Tensor]) -> None:
        """From a checkpoint."""
        self.loss = state.pop("").to(self.loss)
        self.kept = {name: value.to(self.kept[name]) for name, value in state.items()}


class _Run:
    """The training of one fold, which can be interrupted and resumed from a checkpoint."""

    def __init__(
        self,
        which: Fold,
        how: LearningOptions,
        model: SparseGPRegression,
        checkpoint: Path,
        report: Report,
        stop: Stop,
    ) -> None:
        self.which, self.how, self.model, self.checkpoint = which, how, model, checkpoint
        self.report, self.stop = report, stop
        self.optimizer = torch.optim.Adam(model.parameters(), lr=how.lr)
        self.done, self.seconds, self.finished = 0, 0.0, False
        self.best = _Best(model)
        if checkpoint.exists():
            self._load()

    def to_the_end(self) -> None:
        """Learns until all steps are made, or L-BFGS has converged."""
        advance = self._adam if self.how.optimizer == "adam" else self._lbfgs
        while self.done < self.how.steps and not self.finished:
            began = time.perf_counter() - self.seconds
            every = KEPT_EVERY[self.how.optimizer]
            interrupted = advance(min(self.how.steps, (self.done // every + 1) * every))
            self.seconds = time.perf_counter() - began
            self._save()
            if interrupted:
                raise Interrupted
        if self.how.optimizer == "adam":
            self.best.restore()

    def _adam(self, until: int) -> bool:
        """Nothing in here waits for the device, but for what the criterion itself has to know."""
        shown_every = SHOWN_EVERY.get(self.model.X.device.type, 1)
        while self.done < until:
            for group in self.optimizer.param_groups:
                group["lr"] = self.how.rate(self.done)
            self.optimizer.zero_grad()
            loss = self.model.loss()
            loss.backward()
            self.best.see(loss.detach())
            self.optimizer.step()
            self.done += 1
            if self.done % shown_every == 0 or self.done == until:
                self.report(self.done, loss.item())
            if self.stop():
                return True
        return False

    def _lbfgs(self, until: int) -> bool:
        """A piece with a memory of its own. It begins anew after an interruption: figures stay the same."""
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        stopped = False

        def after_a_move(step: int, value: float) -> bool:
            nonlocal stopped
            self.report(self.done + step, value)
            stopped = self.stop()
            return stopped

        result = self.model.fit(
            "lbfgs", steps=until - self.done, lr=self.how.lr, tolerance=0.0, callback=after_a_move
        )
        if stopped:
            self.model.load_state_dict(before, strict=False)
            return True
        self.done, self.finished = self.done + result.steps, result.converged
        return False

    def _save(self) -> None:
        """Whole or not at all: a process may end at any time."""
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        values = (
            self._of(),
            dict(self.model.named_parameters()),
            self.optimizer.state_dict(),
            self.best.state(),
            self.done,
            self.seconds,
            self.finished,
        )
        write_archive(self.checkpoint, dict(zip(_CHECKPOINT, values, strict=True)))

    def _load(self) -> None:
        try:
            known, _ = read_archive(self.checkpoint, "a checkpoint of this experiment", "cpu")
        except _errors.FileFormatError as error:
            raise _errors.FileFormatError(f"{error} Remove it to start anew.") from error
        missing = [name for name in _CHECKPOINT if name not in known]
        if missing:
            raise self._refused(f"missing entry {missing[0]!r}")
        of, parameters, optimizer, best, done, seconds, finished = (known[name] for name in _CHECKPOINT)
        wanted = self._of()
        if not isinstance(of, dict):
            raise self._refused(f"its options are of type {type(of).__name__}")
        if of != wanted:
            others = {key: of.get(key) for key in (*of, *wanted) if of.get(key) != wanted.get(key)}
            raise _errors.FileFormatError(
                f"{self.checkpoint} was written with other options: "
                f"{', '.join(f'{key} {value}' for key, value in others.items())}. Use the same, or remove it."
            )
        try:
            unused = self.model.load_state_dict(parameters, strict=False).unexpected_keys
            lacking = dict(self.model.named_parameters()).keys() - parameters.keys()
            self.optimizer.load_state_dict(optimizer)
            self.best.load(best)
            self.done, self.seconds, self.finished = int(done), float(seconds), bool(finished)
        except Exception as error:  # whatever entries of other types make of these lines
            raise self._refused(f"{type(error).__name__}: {error}") from error
        if unused or lacking:
            raise self._refused(f"its parameters are not those of the model: {sorted([*unused, *lacking])}")

    def _refused(self, why: str) -> _errors.FileFormatError:
        return _errors.FileFormatError(
            f"{self.checkpoint} is not a checkpoint of this experiment: {why}. Remove it to start anew."
        )

    def _of(self) -> dict[str, Any]:
        options = {**dataclasses.asdict(self.which), **dataclasses.asdict(self.how)}
        chosen = {name: value for name, value in options.items() if value is not None}
        return {**chosen, "rows": len(self.model.X)}
