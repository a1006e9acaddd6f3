"""Base classes of models: saving and loading, and a loss over the data of the model for ``fit``."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._arrays.methods import accept_arrays, describe_origins, restore_origins
from lapgrad.models._parameters import ParametrisedModule, Value
from lapgrad.models._storage import saving as _saving
from lapgrad.models._training import fitting as _fitting
from lapgrad.models._training.adam import Rate
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.result import FitResult
from lapgrad.models._training.resuming import ResumableModel
from lapgrad.models._training.summary import summarise

AnyModel = TypeVar("AnyModel", bound="StoredModel")


class StoredModel(ParametrisedModule, abc.ABC):
    """A module that can be saved to one file and loaded from it, by ``config`` and ``from_config``.

    Its methods take arrays of NumPy and objects of pandas where they ask for tensors of data. Results have
    the kind and the index of the new inputs.

    Attributes:
        reads_arrays: Whether the class reads arrays and objects of pandas itself.
    """

    _kinds: ClassVar[dict[str, type[StoredModel]]] = {}
    reads_arrays: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._kinds[cls.__name__] = cls
        if not cls.reads_arrays:
            accept_arrays(cls)

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor that are no tensors, in types that JSON knows."""

    @classmethod
    @abc.abstractmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description; ``load`` then fills in all parameters and buffers.

        Args:
            config: The result of ``config``.
            tensors: The ``state_dict`` of the model that was saved.
            modules: Networks that the user has passed to ``load``, by name.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write data (if the model holds any), parameters and description into one file, without code.

        An existing file is replaced when the new one is complete.

        Raises:
            NonFiniteError: A parameter or a scale is NaN or infinite; nothing is written.
            OptionError: The data are on several processes, or in files of their own: the model does not have
                all of them. ``torch.save(model.state_dict(), path)`` keeps what it has learned.
            OSError: The file cannot be written.
        """
        if not self.has_all_data():
            raise _exceptions.OptionError(
                f"{type(self).__name__}.save: the data are on several processes or in files. "
                f"torch.save(model.state_dict(), path) keeps what the model has learned."
            )
        tensors = self.state_dict()
        fault = _saving.find_fault(self, tensors)
        if fault is not None:
            raise _exceptions.NonFiniteError(f"{type(self).__name__}.save: {fault}")
        fixed = tuple(name for name, value in self.named_parameters() if not value.requires_grad)
        config = {**self.config(), **_saving.describe_constraints(self), **describe_origins(self)}
        _saving.write_model(path, _saving.SavedModel(type(self).__name__, config, tensors, fixed))

    def set_values(self, values: Mapping[str, Value] | None = None, /, **more: Value) -> None:
        """Set hyper-parameters by name; they stay learned or fixed, as they were.

        Args:
            values: Values by name as in ``hyperparameters``, such as ``{"kernel.lengthscale": 0.5}``.
            more: The same for names without a dot, such as ``noise_var=0.2``.

        Raises:
            OptionError: There is no hyper-parameter of that name, or it cannot have that value.
        """
        found = {name: self._find_hyperparameter(name) for name in {**(values or {}), **more}}
        for name, value in {**(values or {}), **more}.items():
            module, descriptor = found[name]
            setattr(module, descriptor.name, value)

    def has_all_data(self) -> bool:
        """Return whether the data are in this process as a whole, not on others or in files of their own."""
        group = getattr(self, "group", None)
        return group is None or group.size == 1

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        modules: Mapping[str, nn.Module] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Read a model that ``save`` has written. It predicts the same as the model that was saved.

        Args:
            path: The file.
            modules: The networks of the model by name, because the file has their weights, but not their
                code. Their weights are overwritten.
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
            raise _exceptions.FileFormatError(
                f"{cls.__name__}.load: {path} holds a model of class {saved.kind}.{hint}"
            )
        try:
            return _rebuild(kind, saved, given)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # Constructors accept the content of an undamaged file, so any error means a damaged one, except
            # that a missing network is a mistake of the caller.
            if isinstance(error, _exceptions.OptionError) and given.missing:
                raise
            reason = f"missing entry {error}" if isinstance(error, KeyError) else str(error)
            raise _exceptions.FileFormatError(
                f"{cls.__name__}.load: {path} does not fit: {reason}"
            ) from error


def _rebuild(kind: type[AnyModel], saved: _saving.SavedModel, modules: Mapping[str, nn.Module]) -> AnyModel:
    """Return the model of class ``kind`` in a file; raises whatever is wrong with it."""
    origins = saved.config.pop("origins", None)
    model = kind.from_config(saved.config, saved.tensors, modules)
    _saving.apply_constraints(model, saved.config)
    restore_origins(model, origins)
    _saving.check_fit(model, saved)
    # Checked before the weights of the caller's networks are overwritten.
    fault = _saving.find_fault(model, saved.tensors)
    if fault is not None:
        raise _exceptions.FileFormatError(fault)
    model.load_state_dict(saved.tensors)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in saved.fixed)
    return model


class _Networks(Mapping[str, nn.Module]):
    """The networks that were passed to ``load``.

    Attributes:
        missing: Names that were looked up, but do not exist.
    """

    def __init__(self, given: Mapping[str, nn.Module]) -> None:
        for name, module in given.items():
            if not isinstance(module, nn.Module):
                raise _exceptions.OptionError(
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


class Model(ResumableModel, StoredModel):
    """A model that holds its data, and is learned by gradients of ``loss()``.

    Subclasses keep data as buffers (which are part of ``state_dict()`` and of files), and implement ``loss``,
    ``config`` and ``from_config``.

    Attributes:
        jitter: What the last evaluation had to add to the diagonal of a covariance matrix to factorise it,
            relative to the mean of that diagonal. Usually 0; otherwise there was a ``JitterWarning``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jitter = 0.0

    @abc.abstractmethod
    def loss(self) -> Tensor:
        """Return the negative log likelihood of the training data, or a bound of it, summed over the data."""

    def forward(self) -> Tensor:
        """Return ``loss()``."""
        return self.loss()

    def fit(
        self,
        optimizer: str = "lbfgs",
        *,
        steps: int | None = None,
        lr: float | Rate | None = None,
        tolerance: float = 1e-6,
        progress: bool = False,
        callback: Callback | None = None,
        resume: dict[str, Any] | None = None,
    ) -> FitResult:
        """Learn the parameters: minimise ``loss()`` over those that require gradients.

        With priors on hyper-parameters (``set_prior``), minus the log densities of the priors is added.

        Args:
            optimizer: "lbfgs", or "adam" (for losses with random numbers in them, and for networks).
            steps: Evaluations of the loss, at most, those of the fit that is resumed included; None: 200 of
                L-BFGS, 1000 of Adam.
            lr: Learning rate of Adam (None: 0.05), or a function that returns the rate of a step, given its
                number from 0 on; the length of the first step of L-BFGS (None: 1).
            tolerance: Stop when the loss changes by less than this, relative to its magnitude or to 1: in 50
                steps of Adam; in two moves of L-BFGS in a row, and again after a restart, there relative to a
                magnitude of 10 at most (1e-5 by default). 0: never.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called after each step with its number and the loss; True stops the fit.
            resume: The result of ``training_state`` after (or in a callback of) a fit by the same optimiser:
                that fit is continued, up to ``steps``, and ends at the same parameters as one that was never
                interrupted.

        Returns:
            The loss reached, its history, and why the fit stopped.

        Raises:
            FitError: The loss cannot be evaluated, or is not finite, at the start or (Adam) on the way; the
                parameters are then those of the last step that was good.
            OptionError: An argument is not one of those above, or there is nothing to learn.

        Warns:
            FitWarning: A Gaussian process explains nothing: noise alone would be as likely.
        """
        result = _fitting.fit(
            self,
            self.compute_objective,
            optimizer,
            steps=steps,
            lr=lr,
            tolerance=tolerance,
            progress=progress,
            callback=callback,
            resume=resume,
            who=type(self).__name__,
        )
        self.check_fit(result)
        return result

    def summary(self) -> Any:
        """Return the model as text: size of the data, log likelihood, and all hyper-parameters in a table."""
        with torch.no_grad():
            likelihood = -self.loss().item()
        facts = {"data": self.describe_data(), "log likelihood": f"{likelihood:.6g}"}
        if self.has_priors():
            facts["log prior"] = f"{self.log_prior().item():.6g}"
        return summarise(self, type(self).__name__, facts)

    def describe_data(self) -> str:
        """Return the size of the data in words, for ``summary``."""
        return self.extra_repr()

    def compute_objective(self) -> Tensor:
        """Return what a fit minimises: ``loss()``, minus the log densities of priors."""
        return self.loss() - self.log_prior() if self.has_priors() else self.loss()

    def check_fit(self, result: FitResult) -> None:
        """Warn if a fit has ended at useless parameters. Default: no warning."""
