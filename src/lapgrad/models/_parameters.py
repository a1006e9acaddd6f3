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

import abc
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from lapgrad import _errors, _exceptions
from lapgrad.models._bounds import Bounds
from lapgrad.models._storage.distributions import copy_distribution, move_distribution

#: The types that a hyper-parameter can be set to.
Value = float | Sequence[float] | Tensor


class Hyperparameter:
    """A descriptor of one hyper-parameter of a module.

    Use: ``lengthscale = positive()`` in the body of the class, ``self.lengthscale = 0.3`` in ``__init__``.
    The first assignment decides the shape; later ones broadcast to it, and keep ``requires_grad``. None
    stands for the default, if there is one: the value then counts as not given, until one is assigned.

    Attributes:
        option_of_bounds: The option of the constructor of its module that sets bounds; None: ``set_bounds``.
    """

    option_of_bounds: str | None = None

    def __init__(
        self,
        from_raw: Callable[[Tensor], Tensor],
        to_raw: Callable[[Tensor], Tensor],
        inside: Callable[[Any], Any],
        wanted: str,
        floor: str | None = None,
        default: float | None = None,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        self.from_raw, self.to_raw, self.inside, self.wanted = from_raw, to_raw, inside, wanted
        self.floor, self.default, self.limits = floor, default, limits

    def get_lowest(self, module: nn.Module) -> float:
        """Return what values have to be greater than."""
        if self.floor is not None:
            return float(getattr(module, self.floor).max())
        return 0.0 if self.is_logarithmic else self.limits[0]

    @property
    def is_logarithmic(self) -> bool:
        """Whether the value is stored as a logarithm, so that steps are relative changes."""
        return self.from_raw is torch.exp

    @property
    def is_interval(self) -> bool:
        """Whether all values lie between two finite ends."""
        return all(map(math.isfinite, self.limits))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.raw_name = name, f"raw_{name}"

    @overload
    def __get__(self, module: None, owner: type) -> Hyperparameter: ...

    @overload
    def __get__(self, module: nn.Module, owner: type) -> Tensor: ...

    def __get__(self, module: nn.Module | None, owner: type) -> Hyperparameter | Tensor:
        if module is None:
            return self
        return self.decode(module, getattr(module, self.raw_name))

    def decode(self, module: nn.Module, raw: Tensor) -> Tensor:
        """Return the value that a module stores as ``raw``."""
        bounds = find_bounds(module, self.name)
        if bounds is not None:
            return bounds.decode(raw)
        value = self.from_raw(raw)
        return value if self.floor is None else value + getattr(module, self.floor)

    def encode(self, module: nn.Module, value: Tensor) -> Tensor:
        """Return what a module stores for a value that is allowed, in float64."""
        bounds = find_bounds(module, self.name)
        if bounds is not None:
            return bounds.encode(value)
        return self.to_raw(value if self.floor is None else value - getattr(module, self.floor).to(value))

    def is_allowed(self, module: nn.Module, value: Tensor) -> bool:
        """Return whether all numbers of a value are finite and within the domain of the parameter."""
        above = value if self.floor is None else value - getattr(module, self.floor).to(value)
        bounds = get_all_bounds(module).get(self.name)
        if value.numel() == above.numel() == 1:  # numbers of Python are compared in less time than tensors
            number = value.item()
            is_inside = math.isfinite(number) and bool(self.inside(above.item()))
            return is_inside and (bounds is None or bool(bounds.contains(number)))
        inside = value.isfinite() & self.inside(above)
        return bool((inside if bounds is None else inside & bounds.contains(value)).all())

    def __set__(self, module: nn.Module, value: Value | None) -> None:
        not_given = get_names_not_given(module)
        not_given.discard(self.name)
        if value is None:
            if self.default is None:
                raise _exceptions.OptionError(f"{self._describe(module)} must be {self.wanted}, got None.")
            value = self.default
            not_given.add(self.name)
        known: nn.Parameter | None = getattr(module, self.raw_name, None)
        # In double precision, whatever the dtype of the module, because a logarithm loses digits.
        try:
            tensor = torch.as_tensor(value, dtype=torch.float64).detach()
        except (TypeError, ValueError, RuntimeError):
            raise _exceptions.OptionError(
                f"{self._describe(module)} must be a number, or numbers, got {value!r}."
            ) from None
        if not self.is_allowed(module, tensor):
            bounds = get_all_bounds(module).get(self.name)
            wanted = self.wanted if bounds is None else f"{self.wanted}, and {bounds.describe()}"
            raise _exceptions.OptionError(f"{self._describe(module)} must be {wanted}, got {value!r}.")
        raw = self.encode(module, tensor)
        if known is None:
            module.register_parameter(self.raw_name, nn.Parameter(raw.clone()))
            return
        try:
            with torch.no_grad():
                known.copy_(raw)
        except RuntimeError:
            raise _exceptions.ShapeError(
                f"{self._describe(module)} has shape {tuple(known.shape)}, got a value of shape "
                f"{tuple(raw.shape)}."
            ) from None

    def _describe(self, module: nn.Module) -> str:
        return f"{type(module).__name__}: {self.name}"


def get_names_not_given(module: nn.Module) -> set[str]:
    """Return the set of hyper-parameters of a module that have no value from the user, nor from data."""
    names: set[str] = module.__dict__.setdefault("_not_given", set())
    return names


def get_priors(module: nn.Module) -> dict[str, Distribution]:
    """Return the priors of a module (not of its parts) by name, to be read and changed."""
    priors: dict[str, Distribution] = module.__dict__.setdefault("_priors", {})
    return priors


def get_all_bounds(module: nn.Module) -> dict[str, Bounds]:
    """Return the bounds of a module (not of its parts) by name, to be read and changed."""
    bounds: dict[str, Bounds] = module.__dict__.setdefault("_bounds", {})
    return bounds


def find_bounds(module: nn.Module, name: str) -> Bounds | None:
    """Return the bounds of a hyper-parameter of a module, if it has any; also inside compiled graphs."""
    known: dict[str, Bounds] | None = getattr(module, "_bounds", None)
    return None if known is None else known.get(name)


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
    """Return a hyper-parameter greater than the attribute ``floor`` of the module, stored as a logarithm.

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
        raise _exceptions.OptionError(f"bounded: low must be less than high, got {low} and {high}.")
    width = high - low
    return Hyperparameter(
        lambda raw: low + width * torch.sigmoid(raw),
        lambda value: torch.logit((value - low) / width),
        lambda value: (value > low) & (value < high),
        f"between {low:g} and {high:g}",
        limits=(low, high),
    )


def unbounded() -> Any:
    """Return a hyper-parameter that may have any finite value, stored as it is."""
    return Hyperparameter(lambda raw: raw, lambda value: value, lambda value: value == value, "finite")


class _SealedType(abc.ABCMeta):
    """The type of classes whose instances get no new attributes once their constructor has ended."""

    # Type checkers and editors would take its arguments and its result for those of every constructor.
    if not TYPE_CHECKING:

        def __call__(cls, *arguments, **options):
            made = super().__call__(*arguments, **options)
            made.__dict__["_is_sealed"] = True
            return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the constructor: ``help`` and editors would show those of ``__call__`` above."""
        _, *arguments = inspect.signature(inspect.getattr_static(cls, "__init__")).parameters.values()
        return inspect.Signature(arguments)


def _fits_shape(given: torch.Size, wanted: torch.Size) -> bool:
    """Whether numbers of one shape broadcast to another."""
    trailing = wanted[len(wanted) - len(given) :]
    return len(given) <= len(wanted) and all(g in (1, w) for g, w in zip(given, trailing, strict=True))


class ParametrisedModule(nn.Module, metaclass=_SealedType):
    """A module with hyper-parameters of its own or in its parts.

    After the constructor, setting an attribute that does not exist is an error, because it is likely
    misspelt. Names that begin with an underscore are free.

    Attributes:
        may_have_nan: Names of buffers that may hold NaN, such as series with gaps. No other tensor in a file
            may.
    """

    may_have_nan: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        descriptor = getattr(type(self), name, None)
        if isinstance(descriptor, Hyperparameter):
            # torch would take the value of another module's hyper-parameter for a new parameter.
            descriptor.__set__(self, value)
            return
        if self.__dict__.get("_is_sealed") and not name.startswith("_") and not hasattr(self, name):
            raise AttributeError(_describe_unknown_attribute(self, name))
        super().__setattr__(name, value)

    def hyperparameters(self) -> dict[str, Tensor]:
        """Return all hyper-parameters in their own units, by path (``kernel.lengthscale``), detached."""
        return {
            path: getattr(module, descriptor.name).detach()
            for path, module, descriptor in self.iterate_hyperparameters()
        }

    def set_prior(self, name: str, prior: Distribution | None) -> None:
        """Give a hyper-parameter a prior: a fit then finds the maximum of likelihood times prior.

        The density is that of the hyper-parameter in its own units. Several starts are drawn from the prior.

        Args:
            name: Path as in ``hyperparameters``.
            prior: A distribution of ``torch.distributions`` over numbers, with one set of arguments or one
                for each number of the hyper-parameter; None: none.

        Raises:
            OptionError: There is no hyper-parameter of that name, or no density at its value.

        Example:
            >>> from torch.distributions import LogNormal
            >>> from lapgrad.models.kernels import RBF
            >>> kernel = RBF(lengthscale=1.0)
            >>> kernel.set_prior("lengthscale", LogNormal(0.0, 1.0))
            >>> kernel.log_prior().item()
            -0.9189...
        """
        module, descriptor = self._find_hyperparameter(name)
        priors = get_priors(module)
        if prior is None:
            priors.pop(descriptor.name, None)
            return
        if not isinstance(prior, Distribution):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: a prior must be a distribution, got {type(prior).__name__}."
            )
        value = getattr(module, descriptor.name).detach()
        prior = copy_distribution(prior)
        if not _fits_shape(prior.batch_shape, value.shape):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: the prior of {name} has shape {tuple(prior.batch_shape)}, its value "
                f"{tuple(value.shape)}."
            )
        try:
            density = move_distribution(prior, value).log_prob(value)
        except (ValueError, RuntimeError, NotImplementedError):
            # Distributions of torch raise these for a value outside of their support, for shapes of events,
            # and if they have no density. The error below names the parameter.
            density = None
        if density is None or density.shape != value.shape or not bool(density.isfinite().all()):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: the prior of {name} has no density at its value, "
                f"{value.tolist()}: {prior}."
            )
        priors[descriptor.name] = prior

    def set_bounds(self, name: str, low: float | None = None, high: float | None = None) -> None:
        """Keep a hyper-parameter between two values; if it is outside, it moves to the nearest value inside.

        Args:
            name: Path as in ``hyperparameters``.
            low: It stays above this; None: as far as its kind allows.
            high: It stays below this; None: as far as its kind allows. With neither, bounds set before are
                removed.

        Raises:
            OptionError: There is no hyper-parameter of that name, or nothing between the bounds.

        Example:
            >>> from lapgrad.models.kernels import RBF
            >>> kernel = RBF(lengthscale=5.0)
            >>> kernel.set_bounds("lengthscale", 0.1, 2.0)
            >>> kernel.lengthscale.item() < 2.0
            True
        """
        module, descriptor = self._find_hyperparameter(name)
        if descriptor.option_of_bounds is not None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}: the bounds of {name} are an option of {type(module).__name__}: "
                f"{descriptor.option_of_bounds}."
            )
        with torch.no_grad():
            value = getattr(module, descriptor.name).double()
        all_bounds = get_all_bounds(module)
        was_given = descriptor.name not in get_names_not_given(module)
        all_bounds.pop(descriptor.name, None)
        if low is not None or high is not None:
            lowest = descriptor.get_lowest(module)
            bounds = Bounds(
                lowest if low is None else max(lowest, float(low)),
                min(descriptor.limits[1], math.inf if high is None else float(high)),
                descriptor.is_logarithmic,
            )
            if not bounds.low < bounds.high:
                raise _exceptions.OptionError(f"{type(self).__name__}: {name} cannot be {bounds.describe()}.")
            value = torch.where(bounds.contains_clearly(value), value, bounds.move_inside(value))
            all_bounds[descriptor.name] = bounds
        setattr(module, descriptor.name, value)
        if not was_given:
            get_names_not_given(module).add(descriptor.name)

    def log_prior(self, batch: int = 0) -> Tensor:
        """Return the sum of the log densities of all hyper-parameters that have a prior: a scalar.

        Args:
            batch: How many leading dimensions of all hyper-parameters are those of a batch of models.
        """
        total = torch.zeros(())
        for _, module, descriptor in self.iterate_hyperparameters():
            prior = get_priors(module).get(descriptor.name)
            if prior is not None:
                value = getattr(module, descriptor.name)
                total = total.to(value) + move_distribution(prior, value).log_prob(value).flatten(batch).sum(
                    -1
                )
        return total

    def has_priors(self) -> bool:
        """Return whether a hyper-parameter has a prior."""
        return any(get_priors(module) for module in self.modules())

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


def _describe_unknown_attribute(module: nn.Module, name: str) -> str:
    known = [known for known in dir(module) if not known.startswith("_")]
    near = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{type(module).__name__} has no attribute {name!r} that could be set.{hint}"


def _use_names_of_parts(module: nn.Module, path: str) -> str:
    """Return a path with the names of parts of kernels: ``kernel.trend`` for ``kernel.parts.0``."""
    shown: list[str] = []
    for step in path.split(".") if path else []:
        child = getattr(module, step)
        name = getattr(child, "part_name", None) if isinstance(module, nn.ModuleList) else None
        shown[-1 if name else len(shown) :] = [name or step]
        module = child
    return ".".join(shown)
