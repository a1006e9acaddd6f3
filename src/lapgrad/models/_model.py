"""What all models share: files, and for most a loss over the data they hold, and fitting."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad.models._parameters import Parametrised
from lapgrad.models._storage import saving as _saving
from lapgrad.models._training import fitting as _fitting
from lapgrad.models._training.fitting import Callback, FitResult

AnyModel = TypeVar("AnyModel", bound="StoredModel")


class StoredModel(Parametrised, abc.ABC):
    """A module that goes into one file, and comes back from it: ``config`` and ``from_config`` say how."""

    _kinds: ClassVar[dict[str, type[StoredModel]]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._kinds[cls.__name__] = cls

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """What the constructor needs besides tensors, in types that JSON knows."""

    @classmethod
    @abc.abstractmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """A model of this description; ``load`` then fills in all parameters and buffers.

        Args:
            config: What ``config`` returned.
            tensors: The ``state_dict`` of the model that was saved.
            modules: Networks that the user has passed to ``load``, by name.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write data (if the model holds any), parameters and description into one file, without code.

        A file that is there is replaced, and only when the new one is complete.

        Raises:
            NonFiniteError: A parameter or a scale is NaN or infinite; nothing is written.
            OSError: The file cannot be written.
        """
        tensors = self.state_dict()
        fault = _saving.find_fault(self, tensors)
        if fault is not None:
            raise _errors.NonFiniteError(f"{type(self).__name__}.save: {fault}")
        fixed = tuple(name for name, value in self.named_parameters() if not value.requires_grad)
        _saving.write_model(path, _saving.SavedModel(type(self).__name__, self.config(), tensors, fixed))

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        modules: Mapping[str, nn.Module] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Read a model that ``save`` has written; its predictions are those of the one that was saved.

        Args:
            path: The file.
            modules: The networks that the user had passed in, by their names: their weights are in the file,
                their code is not. Their weights are overwritten.
            device: Where the model goes; None: to the device it was saved from.

        Raises:
            FileFormatError: The file is damaged (truncated, changed, with numbers that are not finite), is no
                file of a model, of another class, or of a newer format.
            OptionError: A network is missing.
            DeviceError: The model was saved from a device that this machine does not have.
            OSError: The file cannot be opened or read; ``FileNotFoundError``: there is none.
        """
        given = _Networks({} if modules is None else modules)
        saved = _saving.read_model(path, device)
        kind = cls._kinds.get(saved.kind)
        if kind is None or not issubclass(kind, cls):
            hint = "" if kind is not None else " Import the module that defines it first."
            raise _errors.FileFormatError(
                f"{cls.__name__}.load: {path} holds a model of class {saved.kind}.{hint}"
            )
        try:
            return _rebuild(kind, saved, given)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # Descriptions and data of a sound file pass the checks of constructors. A network that is missing
            # is a fault of the call.
            if isinstance(error, _errors.OptionError) and given.missing:
                raise
            reason = f"missing entry {error}" if isinstance(error, KeyError) else str(error)
            raise _errors.FileFormatError(f"{cls.__name__}.load: {path} does not fit: {reason}") from error


def _rebuild(kind: type[AnyModel], saved: _saving.SavedModel, modules: Mapping[str, nn.Module]) -> AnyModel:
    """The model of class ``kind`` that a file holds; raises whatever goes wrong with it."""
    model = kind.from_config(saved.config, saved.tensors, modules)
    _saving.check_fit(model, saved)
    # Before anything is written over the weights of the caller's networks.
    fault = _saving.find_fault(model, saved.tensors)
    if fault is not None:
        raise _errors.FileFormatError(fault)
    model.load_state_dict(saved.tensors)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in saved.fixed)
    return model


class _Networks(Mapping[str, nn.Module]):
    """The networks that were passed to ``load``.

    Attributes:
        missing: Names that were asked for, and are not there.
    """

    def __init__(self, given: Mapping[str, nn.Module]) -> None:
        for name, module in given.items():
            if not isinstance(module, nn.Module):
                raise _errors.OptionError(
                    f"load: modules[{name!r}] must be a module, got {type(module).__name__}."
                )
        self.given, self.missing = given, list[object]()

    def __getitem__(self, name: str) -> nn.Module:
        if name not in self.given:
            self.missing.append(name)
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


class Model(StoredModel):
    """A model of data that it holds, learned by gradients of ``loss()``.

    Subclasses keep data as buffers (they are part of ``state_dict()``, and so of files), and give ``loss``,
    ``config`` and ``from_config``.

    Attributes:
        jitter: What the last evaluation had to add to the diagonal of a covariance matrix to factorise it,
            relative to the mean of that diagonal. 0 is the rule; anything else came with a
            ``JitterWarning``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jitter = 0.0

    @abc.abstractmethod
    def loss(self) -> Tensor:
        """The negative log likelihood of the training data, or a bound of it: a scalar, a sum and no mean."""

    def forward(self) -> Tensor:
        """The same as ``loss()``."""
        return self.loss()

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        steps: int | None = None,
        lr: float | None = None,
        tolerance: float = 1e-6,
        progress: bool = False,
        callback: Callback | None = None,
    ) -> FitResult:
        """Learn the parameters: minimise ``loss()`` over those that require gradients.

        Args:
            optimizer: "lbfgs", or "adam" (for losses with random numbers in them, and for networks).
            steps: Evaluations of the loss, at most; None: 200 of L-BFGS, 1000 of Adam.
            lr: Learning rate of Adam (None: 0.05); the length of the first step of L-BFGS (None: 1).
            tolerance: Stop when the loss changes by less than this, relative to its magnitude or to 1: in one
                move of L-BFGS, in 50 steps of Adam. 0: never.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called after each step with its number and the loss; True stops the fit.

        Returns:
            The loss reached, its history, and why the fit stopped.

        Raises:
            FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
                parameters are then those of the last step that was good.
            OptionError: An argument is not one of those above, or there is nothing to learn.
        """
        return _fitting.fit(
            self,
            self.loss,
            optimizer,
            steps=steps,
            lr=lr,
            tolerance=tolerance,
            progress=progress,
            callback=callback,
            who=type(self).__name__,
        )
