"""Features of inputs, for Bayesian linear regression: polynomials and random Fourier features.

Any ``nn.Module`` that maps (n, d) to (n, m) can take their place.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.models import _checks, _sampling
from lapgrad.models._parameters import ParametrisedModule, Value, positive
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, INTEGER, NUMBER_OR_NUMBERS, PART, TEXT, Entry, check_entries

#: All classes of features by name, including those of users: files refer to them by name.
_KINDS: dict[str, type[Features]] = {}


class Features(ParametrisedModule, abc.ABC):
    """Features of inputs that files can describe: (*batch, n, d) to (*batch, n, m).

    They do not include the constant 1, which models add.

    Attributes:
        config_entries: The entries of ``config``, which ``from_config`` checks.
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _KINDS[cls.__name__] = cls

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, in types that JSON knows."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Features:
        """Return features of this description; parameters and buffers are filled in from the file."""
        check_entries(config, cls.config_entries, f"the features {cls.__name__}")
        return cls(**config)


class PolynomialFeatures(Features):
    """Products of the coordinates of an input, up to a degree.

    Args:
        degree: The largest total degree, at least 1.
        interactions: Include products of different coordinates; else only powers of each.

    Raises:
        OptionError: ``degree`` is less than 1.

    Example:
        >>> import torch
        >>> from lapgrad.models import PolynomialFeatures
        >>> PolynomialFeatures(2)(torch.tensor([[2.0, 3.0]]))
        tensor([[2., 3., 4., 6., 9.]])
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"degree": INTEGER, "interactions": FLAG}

    def __init__(self, degree: int, interactions: bool = True) -> None:
        super().__init__()
        if degree < 1:
            raise _exceptions.OptionError(f"PolynomialFeatures: degree must be at least 1, got {degree}.")
        self.degree, self.interactions = degree, interactions

    def forward(self, X: Tensor) -> Tensor:
        """Return all products of degree 1, then those of degree 2, and so on.

        Args:
            X: (*batch, n, d).

        Returns:
            (*batch, n, m), with m = (d + degree)! / (d! degree!) - 1, or d degree without interactions.
        """
        coordinates = X.split(1, dim=-1)
        # blocks[j] holds the products of the last degree whose first coordinate is j. The products of the
        # next degree with first coordinate i are x_i times the blocks j >= i: each product appears once, in
        # lexicographic order.
        blocks = list(coordinates)
        levels = [X]
        for _ in range(self.degree - 1):
            if self.interactions:
                blocks = [x * torch.cat(blocks[i:], dim=-1) for i, x in enumerate(coordinates)]
            else:
                blocks = [x * block for x, block in zip(coordinates, blocks, strict=True)]
            levels.extend(blocks)
        return torch.cat(levels, dim=-1)

    def config(self) -> dict[str, Any]:
        """Degree and interactions."""
        return {"degree": self.degree, "interactions": self.interactions}

    def extra_repr(self) -> str:
        """Degree and interactions."""
        return f"degree={self.degree}, interactions={self.interactions}"


#: Degrees of freedom of the t distribution of the frequencies: twice the order of a Matérn kernel. None:
#: normal.
_DEGREES_OF_FREEDOM = {"rbf": None, "matern12": 1, "matern32": 3, "matern52": 5}


class RandomFourierFeatures(Features):
    """cos(w x / l) and sin(w x / l) for random frequencies w, over sqrt(count).

    Inner products approximate a stationary kernel, k(x, z) = E cos(w (x - z) / l), with k(x, x) = 1 exact:
    Bayesian linear regression on them approximates a Gaussian process with that kernel, at a cost that grows
    with n and not with n³ (Rahimi and Recht, 2007). The lengthscales l are learned, the frequencies stay as
    they were drawn.

    Args:
        dimension: d, of the inputs.
        count: How many frequencies; twice as many features.
        lengthscale: A number, or one per coordinate (d,).
        kernel: "rbf", "matern12", "matern32" or "matern52".
        generator: Source of the frequencies: a ``torch.Generator``, a seed, or None for torch's own.

    Raises:
        OptionError: The kernel is not known, or a number not positive.

    Example:
        >>> import torch
        >>> from lapgrad.models import RandomFourierFeatures
        >>> features = RandomFourierFeatures(2, 5000, lengthscale=0.5, generator=0)
        >>> Phi = features(torch.tensor([[0.0, 0.0], [0.5, 0.0]], dtype=torch.float64))
        >>> (Phi @ Phi.mT).detach().round(decimals=1)   # beside the diagonal: exp(-1/2) = 0.61
        tensor([[1.0000, 0.6000],
                [0.6000, 1.0000]], dtype=torch.float64)
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {
        "dimension": INTEGER,
        "count": INTEGER,
        "lengthscale": NUMBER_OR_NUMBERS,
        "kernel": TEXT,
    }
    lengthscale = positive()

    def __init__(
        self,
        dimension: int,
        count: int,
        lengthscale: Value = 1.0,
        kernel: str = "rbf",
        generator: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        if dimension < 1 or count < 1:
            raise _exceptions.OptionError(
                f"RandomFourierFeatures: dimension and count must be positive, got {dimension} and {count}."
            )
        if kernel not in _DEGREES_OF_FREEDOM:
            raise _errors.unknown_option("RandomFourierFeatures", "kernel", kernel, list(_DEGREES_OF_FREEDOM))
        self.lengthscale = lengthscale
        if self.lengthscale.shape not in ((), (1,), (dimension,)):
            raise _exceptions.ShapeError(
                f"RandomFourierFeatures: lengthscale must be a number or have {dimension} entries, got shape "
                f"{tuple(self.lengthscale.shape)}."
            )
        self.kernel = kernel
        source = _checks.make_generator("RandomFourierFeatures", generator, torch.device("cpu"))
        self.register_buffer("frequencies", _draw_frequencies(kernel, dimension, count, source))

    frequencies: Tensor

    def forward(self, X: Tensor) -> Tensor:
        """Return the cosines, then the sines.

        Args:
            X: (*batch, n, d).

        Returns:
            (*batch, n, 2 count).
        """
        if X.shape[-1] != self.frequencies.shape[1]:
            raise _exceptions.ShapeError(
                f"RandomFourierFeatures: inputs must have {self.frequencies.shape[1]} columns, got shape "
                f"{tuple(X.shape)}."
            )
        angles = multiply(X, (self.frequencies / self.lengthscale).to(X).mT)
        return torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(len(self.frequencies))

    def config(self) -> dict[str, Any]:
        """Sizes and kernel."""
        count, dimension = self.frequencies.shape
        ones: float | Sequence[float] = [1.0] * self.lengthscale.numel() if self.lengthscale.dim() else 1.0
        return {"dimension": dimension, "count": count, "lengthscale": ones, "kernel": self.kernel}

    def extra_repr(self) -> str:
        """Sizes and kernel."""
        count, dimension = self.frequencies.shape
        return f"dimension={dimension}, count={count}, kernel={self.kernel}"


def _draw_frequencies(kernel: str, dimension: int, count: int, source: torch.Generator | None) -> Tensor:
    """Draw frequencies (count, dimension) of the kernel with lengthscale 1.

    They are normal for the RBF kernel. For a Matérn kernel of order v they have a multivariate t distribution
    with 2 v degrees of freedom: normal numbers divided by the root of chi²(2 v) / (2 v).
    """
    normal = _sampling.draw_standard_normal(source, count, dimension)
    degrees = _DEGREES_OF_FREEDOM[kernel]
    if degrees is None:
        return normal
    squares = _sampling.draw_standard_normal(source, count, degrees).square().sum(1, keepdim=True)
    return normal * (degrees / squares).sqrt()


def describe_features(features: nn.Module | None) -> dict[str, Any]:
    """Return the description of features for a file: class and arguments, or that they are a network."""
    if features is None:
        return {"kind": "inputs"}
    if isinstance(features, Features):
        return {"kind": type(features).__name__, "arguments": features.config()}
    return {"kind": "module"}


def make_features(
    who: str, description: Mapping[str, Any], modules: Mapping[str, nn.Module]
) -> nn.Module | None:
    """Return the features of a description; a network is taken from ``modules["features"]``.

    Raises:
        OptionError: The network is missing.
        FileFormatError: No features of that name are known.
    """
    check_entries(description, {"kind": TEXT}, "the features")
    kind = description["kind"]
    if kind == "inputs":
        return None
    if kind == "module":
        if "features" not in modules:
            raise _exceptions.OptionError(
                f"{who}.load: this model has a network for features, whose code is not in the file: pass "
                f"modules={{'features': network}}."
            )
        return modules["features"]
    known = _KINDS.get(kind)
    if known is None:
        raise _exceptions.FileFormatError(
            f"{who}.load: the features {kind} are not known. Import the module that defines them first."
        )
    check_entries(description, {"arguments": PART}, f"the features {kind}")
    return known.from_config(description["arguments"])


def evaluate_features(who: str, features: nn.Module | None, X: Tensor) -> Tensor:
    """Return the features (n, m) of X (n, d); raise if the shape is wrong."""
    if features is not None and not callable(features):
        raise _exceptions.OptionError(f"{who}: features must be a module, got {features!r}.")
    Phi = X if features is None else features(X)
    if not isinstance(Phi, Tensor) or Phi.dim() != 2 or len(Phi) != len(X):
        seen = tuple(Phi.shape) if isinstance(Phi, Tensor) else type(Phi).__name__
        raise _exceptions.ShapeError(
            f"{who}: features must map {tuple(X.shape)} to ({len(X)}, m), got {seen}."
        )
    return Phi


@contextlib.contextmanager
def fix_parameters(module: nn.Module | None) -> Iterator[None]:
    """Inside the context the parameters of a module do not require gradients; its inputs still may."""
    learned = [] if module is None else [value for value in module.parameters() if value.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
