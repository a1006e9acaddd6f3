"""One fold of sparse Gaussian process regression: split, model, training with checkpoints, test.

A fold that was interrupted continues from its checkpoint and ends at the same figures, to the last bit: the
checkpoint holds the parameters and the state of the optimiser, and everything else follows from the seed.
"""

from __future__ import annotations

import argparse
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

from lapgrad import _exceptions
from lapgrad.models import SparseGPRegression
from lapgrad.models._storage.archive import read_archive, write_archive
from lapgrad_bench.common.option_values import parse_number

PARTS = 10
"""Number of folds: each tests on another tenth of the data."""

KEPT_EVERY = {"adam": 250, "lbfgs": 1000}
"""Steps between two checkpoints. L-BFGS loses its memory at each of them, and is slow after it."""

_JITTER = 1e-6
_LITTLE_JITTER = 1e-8
_NO_NOISE = ("naval1", "naval2")
"""Tasks with simulated data: the learned noise falls below 1e-6 of the variance. Jitter acts like noise of
the inducing variables, and must be smaller."""

_CHECKPOINT = ("of", "parameters", "training", "best", "done", "seconds", "finished")
"""The entries of a checkpoint."""

DTYPES = {"float64": torch.float64, "float32": torch.float32}

#: Called with the number of steps made and the loss.
Report = Callable[[int, float], None]
#: Called after each step; True stops the training.
Stop = Callable[[], bool]


@dataclass(frozen=True)
class LearningOptions:
    """How folds are learned. All folds of one table have the same options.

    Attributes:
        optimizer: "adam", or "lbfgs".
        steps: Evaluations of the criterion and its gradient; fewer if L-BFGS converges.
        lr: Learning rate of Adam; the length of the first step of L-BFGS.
        seed: Seed of the order of the data and of the choice of inducing inputs.
        dtype: A key of ``DTYPES``.
        jitter: Added to the diagonal of the kernel matrix of inducing inputs, relative to its mean; None: the
            default for the data set.
        lr_end: Adam's learning rate at the end, to which it falls by the same factor in each step; None: it
            is constant.
        init: How inducing inputs are chosen, as in ``SparseGPRegression``.
    """

    optimizer: str = "adam"
    steps: int = 3000
    lr: float = 1e-2
    seed: int = 0
    dtype: str = "float64"
    jitter: float | None = None
    lr_end: float | None = None
    init: str = "kmeans++"

    def compute_rate(self, step: int) -> float:
        """Return Adam's learning rate in a step.

        Example:
            >>> options = LearningOptions(steps=2, lr=1e-2, lr_end=1e-4)
            >>> [f"{options.compute_rate(step):.4f}" for step in range(3)]
            ['0.0100', '0.0010', '0.0001']
        """
        return self.lr if self.lr_end is None else self.lr * (self.lr_end / self.lr) ** (step / self.steps)

    def adapt_to_task(self, dataset: str) -> LearningOptions:
        """Return the options with the jitter for a data set."""
        if self.jitter is not None:
            return self
        return dataclasses.replace(self, jitter=_LITTLE_JITTER if dataset in _NO_NOISE else _JITTER)


@dataclass(frozen=True)
class Fold:
    """One run of the experiment: a data set, a number of inducing inputs, and a fold.

    The data are split into ten folds; the rows of this one are the test set.
    """

    dataset: str
    inducing: int
    fold: int

    def __str__(self) -> str:
        return f"{self.dataset}, U = {self.inducing}, fold {self.fold + 1}"

    @property
    def file(self) -> str:
        """The file name of its checkpoint."""
        return f"{self.dataset}-{self.inducing}-{self.fold}.pt"


class Interrupted(Exception):  # noqa: N818  (no error: a request)
    """The training was asked to stop, and the checkpoint is written."""


def parse_folds(text: str) -> int:
    """Return how many of the folds an option asks for."""
    if parse_number(text) > PARTS:
        raise argparse.ArgumentTypeError(f"there are {PARTS} folds, {text} were asked for")
    return int(text)


def split_rows(n: int, fold: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to learn from and the rows to test with; their order depends on the seed alone.

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
    fold: Fold,
    options: LearningOptions,
    data: tuple[Tensor, Tensor],
    device: str,
    checkpoints: Path,
    report: Report,
    stop: Stop,
) -> dict[str, Any]:
    """Learn one fold and test it; return the row of the results.

    The parameters that are tested are those of the step of Adam with the least criterion.

    Args:
        fold: The fold.
        options: How to learn.
        data: All inputs (n, d) and targets (n,).
        device: Where to compute.
        checkpoints: The folder of checkpoints. If there is one of this fold, training continues from it.
        report: Called every few steps.
        stop: Called after each step; True stops the training.

    Raises:
        Interrupted: ``stop`` returned True.
        FitError: The criterion cannot be evaluated.
        FileFormatError: The checkpoint does not belong to this fold.
    """
    options = options.adapt_to_task(fold.dataset)
    X, y = (values.to(DTYPES[options.dtype]) for values in data)
    train, test = split_rows(len(X), fold.fold, options.seed)
    model = make_model(X[train], y[train], fold, options).to(device)
    run = _Run(fold, options, model, checkpoints / fold.file, report, stop)
    with warnings.catch_warnings():
        # Jitter that matrices needed during training does not matter; that of the last one is in the row.
        warnings.simplefilter("ignore", _exceptions.JitterWarning)
        run.learn()
        figures = test_model(run.model, X[test].to(device), y[test].to(device))
    run.checkpoint.unlink(missing_ok=True)
    return {
        **dataclasses.asdict(fold),
        **dataclasses.asdict(options),
        **figures,
        "seconds": run.seconds,
        "seconds_per_step": run.seconds / run.done,
        "steps_made": run.done,
        "rows": len(train),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def make_model(X: Tensor, y: Tensor, fold: Fold, options: LearningOptions) -> SparseGPRegression:
    """Return the model before training, on the CPU, so that it is the same for every device.

    Columns of the training data are scaled to mean 0 and variance 1. Inducing inputs are rows of the data
    that are far from each other, or what ``init`` says; lengthscales are √d, the distance of neighbours in
    d dimensions; the noise is a tenth of the variance. All parameters but the inducing inputs and the mean
    are learned as logarithms.
    """
    jitter = options.adapt_to_task(fold.dataset).jitter or 0.0
    return SparseGPRegression(
        X,
        y,
        inducing=fold.inducing,
        init=options.init,
        normalise=True,
        jitter=jitter,
        generator=options.seed + fold.fold,
    )


@torch.no_grad()
def test_model(model: SparseGPRegression, X: Tensor, y: Tensor) -> dict[str, float]:
    """Return RMSE and mean log density of test targets, in their units, and loss and noise of the fit."""
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
    """The parameters with the least loss so far: Adam with a constant rate jumps around the minimum."""

    def __init__(self, model: SparseGPRegression) -> None:
        self.parameters = dict(model.named_parameters())
        self.loss = math.inf
        self.kept = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self, loss: float) -> None:
        """Keep the present parameters if their loss is the least so far."""
        if loss < self.loss:
            self.loss = loss
            for name, value in self.parameters.items():
                self.kept[name].copy_(value)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the parameters of the model to the best ones."""
        for name, value in self.parameters.items():
            value.copy_(self.kept[name])

    def state(self) -> dict[str, Any]:
        """Return the entries of a checkpoint."""
        return {"loss": self.loss, "parameters": self.kept}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Read the entries of a checkpoint."""
        self.loss = float(state["loss"])
        for name, value in self.kept.items():
            value.copy_(state["parameters"][name])


class _Run:
    """The training of one fold, which can be interrupted and resumed from a checkpoint."""

    def __init__(
        self,
        fold: Fold,
        options: LearningOptions,
        model: SparseGPRegression,
        checkpoint: Path,
        report: Report,
        stop: Stop,
    ) -> None:
        self.fold, self.options, self.model, self.checkpoint = fold, options, model, checkpoint
        self.report, self.stop = report, stop
        self.state: dict[str, Any] = {}
        self.done, self.seconds, self.finished = 0, 0.0, False
        self.best = _Best(model)
        if checkpoint.exists():
            self._load()

    def learn(self) -> None:
        """Learn until all steps are made, or L-BFGS has converged.

        Raises:
            Interrupted: ``stop`` returned True.
        """
        began = time.perf_counter() - self.seconds
        fit = self._fit_with_adam if self.options.optimizer == "adam" else self._fit_with_lbfgs
        while self.done < self.options.steps and not self.finished:
            interrupted = fit(lambda: time.perf_counter() - began)
            self._save(time.perf_counter() - began)
            if interrupted:
                raise Interrupted
        if self.options.optimizer == "adam":
            self.best.restore()

    def _fit_with_adam(self, read_clock: Callable[[], float]) -> bool:
        """Fit the model by Adam, with checkpoints; return whether ``stop`` ended it."""
        stopped = False

        def handle_step(step: int, loss: float) -> bool:
            nonlocal stopped
            self.done = step
            self.best.update(loss)
            self.report(step, loss)
            if step % KEPT_EVERY["adam"] == 0:
                self.state = self.model.training_state()
                self._save(read_clock())
            stopped = self.stop()
            return stopped

        try:
            self.model.fit(
                "adam",
                steps=self.options.steps,
                lr=self.options.compute_rate,
                tolerance=0.0,
                callback=handle_step,
                resume=self.state or None,
            )
        except _exceptions.OptionError as error:
            raise self._make_refusal(str(error)) from error
        self.state = self.model.training_state()
        return stopped

    def _fit_with_lbfgs(self, read_clock: Callable[[], float]) -> bool:
        """Make steps of L-BFGS up to the next checkpoint; return whether ``stop`` ended them.

        After an interruption they are repeated from the last checkpoint, so that the figures stay the same.
        """
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        every, stopped = KEPT_EVERY["lbfgs"], False
        until = min(self.options.steps, (self.done // every + 1) * every)

        def handle_move(step: int, loss: float) -> bool:
            nonlocal stopped
            self.report(self.done + step, loss)
            stopped = self.stop()
            return stopped

        result = self.model.fit(
            "lbfgs", steps=until - self.done, lr=self.options.lr, tolerance=0.0, callback=handle_move
        )
        if stopped:
            self.model.load_state_dict(before, strict=False)
            return True
        self.done, self.finished = self.done + result.steps, result.converged
        return False

    def _save(self, seconds: float) -> None:
        """Write the checkpoint after this many seconds of training.

        It is written atomically, because the process may be killed at any time.
        """
        self.seconds = seconds
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        values = (
            self._collect_options(),
            dict(self.model.named_parameters()),
            self.state,
            self.best.state(),
            self.done,
            self.seconds,
            self.finished,
        )
        write_archive(self.checkpoint, dict(zip(_CHECKPOINT, values, strict=True)))

    def _load(self) -> None:
        try:
            known, _ = read_archive(self.checkpoint, "a checkpoint of this experiment", "cpu")
        except _exceptions.FileFormatError as error:
            raise _exceptions.FileFormatError(f"{error} Remove it to start anew.") from error
        missing = [name for name in _CHECKPOINT if name not in known]
        if missing:
            raise self._make_refusal(f"missing entry {missing[0]!r}")
        of, parameters, training, best, done, seconds, finished = (known[name] for name in _CHECKPOINT)
        wanted = self._collect_options()
        if not isinstance(of, dict):
            raise self._make_refusal(f"its options are of type {type(of).__name__}")
        if of != wanted:
            others = {key: of.get(key) for key in (*of, *wanted) if of.get(key) != wanted.get(key)}
            raise _exceptions.FileFormatError(
                f"{self.checkpoint} was written with other options: "
                f"{', '.join(f'{key} {value}' for key, value in others.items())}. Use the same, or remove it."
            )
        try:
            unused = self.model.load_state_dict(parameters, strict=False).unexpected_keys
            lacking = dict(self.model.named_parameters()).keys() - parameters.keys()
            self.state = dict(training)
            self.best.load(best)
            self.done, self.seconds, self.finished = int(done), float(seconds), bool(finished)
        except Exception as error:  # Entries of other types can raise anything here.
            raise self._make_refusal(f"{type(error).__name__}: {error}") from error
        if unused or lacking:
            raise self._make_refusal(
                f"its parameters are not those of the model: {sorted([*unused, *lacking])}"
            )

    def _make_refusal(self, why: str) -> _exceptions.FileFormatError:
        return _exceptions.FileFormatError(
            f"{self.checkpoint} is not a checkpoint of this experiment: {why}. Remove it to start anew."
        )

    def _collect_options(self) -> dict[str, Any]:
        entries = {**dataclasses.asdict(self.fold), **dataclasses.asdict(self.options)}
        chosen = {name: value for name, value in entries.items() if value is not None}
        return {**chosen, "rows": len(self.model.X)}
