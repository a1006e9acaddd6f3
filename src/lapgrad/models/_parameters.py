"""Hyper-parameters that are positive or in an interval: set, read and learned.

An optimiser moves a parameter freely, so each hyper-parameter ``name`` is stored as an unconstrained
``raw_name`` (the ``nn.Parameter``), and reading ``module.name`` gives its image under a smooth map:

    positive        value = exp(raw)
    above           value = floor + exp(raw)
    bounded         value = low + (high - low) sigmoid(raw)

Derivatives are with respect to ``raw_name``. With a logarithm, steps of an optimiser are relative changes,
for a lengthscale of 0.01 as for one of 100.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn

from lapgrad import _errors

#: The types that a hyper-parameter can be set to.
Value = float | Sequence[float] | Tensor


class Hyperparameter:
    """A descriptor of one hyper-parameter of a module.

    Use: ``lengthscale = positive()`` in the body of the class, ``self.lengthscale = 0.3`` in ``__init__``.
    The first assignment decides the shape; later ones broadcast to it, and keep ``requires_grad``. None
    stands for the default, if there is one: the value then counts as not given, until one is assigned.
    """

    def __init__(
        self,
        from_raw: Callable[[Tensor], Tensor],
        to_raw: Callable[[Tensor], Tensor],
        inside: Callable[[Tensor], Tensor],
        wanted: str,
        floor: str | None = None,
        default: float | None = None,
    ) -> None:
        self.from_raw, self.to_raw, self.inside, self.wanted = from_raw, to_raw, inside, wanted
        self.floor, self.default = floor, default

    @property
    def is_logarithmic(self) -> bool:
        """Whether the value is stored as a logarithm, so that steps are relative changes."""
        return self.from_raw is torch.exp

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.raw_name = name, f"raw_{name}"

    @overload
    def __get__(self, module: None, owner: type) -> Hyperparameter: ...

    @overload
    def __get__(self, module: nn.Module, owner: type) -> Tensor: ...

    def __get__(self, module: nn.Module | None, owner: type) -> Hyperparameter | Tensor:
        if module is None:
            return self
        value = self.from_raw(getattr(module, self.raw_name))
        return value if self.floor is None else value + getattr(module, self.floor)

    def __set__(self, module: nn.Module, value: Value | None) -> None:
        not_given = get_names_not_given(module)
        not_given.discard(self.name)
        if value is None:
            if self.default is None:
                raise _errors.OptionError(f"{self._describe(module)} must be {self.wanted}, got None.")
            value = self.default
            not_given.add(self.name)
        known: nn.Parameter | None = getattr(module, self.raw_name, None)
        # In double precision, whatever the dtype of the module, because a logarithm loses digits.
        tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
        tensor = tensor.to(torch.float64)
        if self.floor is not None:
            tensor = tensor - getattr(module, self.floor).to(tensor)
        if not bool((tensor.isfinite() & self.inside(tensor)).all()):
            raise _errors.OptionError(f"{self._describe(module)} must be {self.wanted}, got {value!r}.")
        raw = self.to_raw(tensor)
        if known is None:
            module.register_parameter(self.raw_name, nn.Parameter(raw.clone()))
            return
        try:
            with torch.no_grad():
                known.copy_(raw)
        except RuntimeError:
            raise _errors.ShapeError(
                f"{self._describe(module)} has shape {tuple(known.shape)}, got a value of shape "
                f"{tuple(raw.shape)}."
            ) from None

    def _describe(self, module: nn.Module) -> str:
        return f"{type(module).__name__}: {self.name}"


def get_names_not_given(module: nn.Module) -> set[str]:
    """Return the set of hyper-parameters of a module that have no value from the user, nor from data."""
    names: set[str] = module.__dict__.setdefault("_not_given", set())
    return names


def positive(default: float | None = None) -> Any:
    """A hyper-parameter greater than 0, stored as its logarithm; assigning None sets it to ``default``.

    Example:
        >>> class Noise(ParametrisedModule):
        ...     variance = positive()
        >>> noise = Noise()
        >>> noise.variance = 0.25
        >>> noise.raw_variance.exp().item()
        0.25
    """
    return Hyperparameter(
        torch.exp, torch.log, lambda value: value > 0, "positive and finite", default=default
    )


def above(floor: str) -> Any:
    """A hyper-parameter greater than the attribute ``floor`` of the module, stored as a logarithm.

    Example:
        >>> class Noise(ParametrisedModule):
        ...     floor, variance = torch.tensor(0.25), above("floor")
        >>> noise = Noise()
        >>> noise.variance = 1.25
        >>> noise.raw_variance.item()
        0.0
    """
    return Hyperparameter(
        torch.exp, torch.log, lambda value: value > 0, f"greater than {floor} and finite", floor
    )


def bounded(low: float, high: float) -> Any:
    """A hyper-parameter between ``low`` and ``high``, both excluded, stored as the logit of its position.

    Example:
        >>> class Damping(ParametrisedModule):
        ...     rate = bounded(0.0, 2.0)
        >>> damping = Damping()
        >>> damping.rate = 1.0
        >>> damping.raw_rate.item()
        0.0
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _errors.OptionError(f"bounded: low must be less than high, got {low} and {high}.")
    width = high - low
    return Hyperparameter(
        lambda raw: low + width * torch.sigmoid(raw),
        lambda value: torch.logit((value - low) / width),
        lambda value: (value > low) & (value < high),
        f"between {low:g} and {high:g}",
    )


def unbounded() -> Any:
    """A hyper-parameter that may have any finite value, stored as it is."""
    return Hyperparameter(lambda raw: raw, lambda value: value, torch.isfinite, "finite")


class ParametrisedModule(nn.Module):
    """A module with hyper-parameters of its own or in its parts.

    Attributes:
        may_have_nan: Names of buffers that may hold NaN, such as series with gaps. No other tensor in a file
            may.
    """

    may_have_nan: ClassVar[frozenset[str]] = frozenset()

    def hyperparameters(self) -> dict[str, Tensor]:
        """Return all hyper-parameters in their own units, by path (``kernel.lengthscale``), detached."""
        return {
            path: getattr(module, descriptor.name).detach()
            for path, module, descriptor in self.iterate_hyperparameters()
        }

    def fix(self, *names: str) -> None:
        """Exclude hyper-parameters from learning: they keep their values.

        Args:
            names: Paths as in ``hyperparameters``; none: all of them.

        Raises:
            OptionError: There is no hyper-parameter of that name.
        """
        self._set_learned(names, False)

    def free(self, *names: str) -> None:
        """Include hyper-parameters in learning again, after ``fix`` (no names: all of them)."""
        self._set_learned(names, True)

    def _set_learned(self, names: Sequence[str], learned: bool) -> None:
        for name in names or self.hyperparameters():
            module, descriptor = self._find_hyperparameter(name)
            module.get_parameter(descriptor.raw_name).requires_grad_(learned)

    def _find_hyperparameter(self, name: str) -> tuple[nn.Module, Hyperparameter]:
        """Return the module that has a hyper-parameter, and its descriptor."""
        found = {path: (module, descriptor) for path, module, descriptor in self.iterate_hyperparameters()}
        if name not in found:
            raise _errors.unknown_option(type(self).__name__, "name", name, list(found))
        return found[name]

    def iterate_hyperparameters(self) -> Iterator[tuple[str, nn.Module, Hyperparameter]]:
        """Yield path, module and descriptor of all hyper-parameters."""
        for place, module in self.named_modules():
            path = _use_names_of_parts(self, place)
            for name in dir(type(module)):
                descriptor = getattr(type(module), name, None)
                if isinstance(descriptor, Hyperparameter) and hasattr(module, descriptor.raw_name):
                    yield f"{path}.{name}" if path else name, module, descriptor


def _use_names_of_parts(module: nn.Module, path: str) -> str:
    """Return a path with the names of parts of kernels: ``kernel.trend`` for ``kernel.parts.0``."""
    shown: list[str] = []
    for step in path.split(".") if path else []:
        child = getattr(module, step)
        name = getattr(child, "part_name", None) if isinstance(module, nn.ModuleList) else None
        shown[-1 if name else len(shown) :] = [name or step]
        module = child
    return ".".join(shown)
