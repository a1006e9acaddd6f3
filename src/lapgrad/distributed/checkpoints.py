"""Checkpoints of fits, from which a restarted program continues."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.distributed.group import Group


class Checkpoint:
    """A file from which a restarted fit continues (by ``torchrun`` for example), to the same figures.

    It holds the parameters of a model and the state of its optimiser, not the data. Rank 0 writes it and
    reads it, so that it need not be on a disk that all machines see.

    Args:
        path: The file. It is replaced when the new one is complete: a program that is killed while it writes
            leaves the last good one.
        model: A model whose fit keeps a ``training_state``: by Adam, on minibatches, or by L-BFGS from one
            start.
        every: Write after so many calls of the callback.

    Example:
        >>> import tempfile, torch
        >>> from lapgrad.distributed import Checkpoint
        >>> from lapgrad.models import SparseGPRegression
        >>> x = torch.linspace(0, 6, 50, dtype=torch.float64)
        >>> model = SparseGPRegression(x, torch.sin(x), inducing=5, generator=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpoint(f"{folder}/fit.pt", model, every=2)
        ...     result = model.fit("adam", steps=4, resume=checkpoint.load(), callback=checkpoint)
        ...     checkpoint.load()["step"]
        4
    """

    def __init__(self, path: str | PathLike[str], model: nn.Module, *, every: int = 10) -> None:
        if every < 1:
            raise _exceptions.OptionError(f"Checkpoint: every must be positive, got {every}.")
        if not hasattr(model, "training_state"):
            raise _exceptions.OptionError(
                f"Checkpoint: {type(model).__name__} has no fit that can be resumed."
            )
        self.path, self.every = Path(path), every
        self._model: Any = model
        group = getattr(model, "group", None)
        self._group = group if isinstance(group, Group) else Group()
        self._calls = 0

    def __call__(self, step: int, loss: float) -> None:
        """Count a call of ``fit``'s callback, and write the file after every few."""
        self._calls += 1
        if self._calls % self.every == 0:
            self.save()

    def save(self) -> None:
        """Write the file now; ranks other than 0 do nothing."""
        if not self._group.is_first:
            return
        parameters = {name: value.detach().cpu() for name, value in self._model.named_parameters()}
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            torch.save({"parameters": parameters, "training": self._model.training_state()}, partial)
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Set the parameters of the model, and return the argument ``resume`` of ``fit``; None: no file yet.

        All ranks call it.

        Raises:
            FileFormatError: The file is not a checkpoint, or of another model.
            OSError: It cannot be read.
        """
        known: dict[str, Any] | None = None
        with self._group.expect_sum(1) as pending:
            if self._group.is_first and self.path.exists():
                known = self._read()
            found = torch.tensor([float(known is not None)])
            pending.start([found])
            pending.wait()
        if not found:
            return None
        known = self._group.share_object(known)
        assert known is not None
        parameters: dict[str, Tensor] = known["parameters"]
        with torch.no_grad():
            for name, value in self._model.named_parameters():
                value.copy_(parameters[name])
        training: dict[str, Any] = known["training"]
        return training

    def _read(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            parameters: dict[str, Tensor] = known["parameters"]
            shapes = {name: value.shape for name, value in parameters.items()}
        except OSError:
            raise
        except Exception as error:  # whatever torch raises for a file that it cannot read
            raise _exceptions.FileFormatError(f"Checkpoint: {self.path} is not a checkpoint.") from error
        if shapes != {name: value.shape for name, value in self._model.named_parameters()}:
            raise _exceptions.FileFormatError(f"Checkpoint: {self.path} is of a model with other parameters.")
        return known
