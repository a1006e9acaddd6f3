"""Likelihoods: the distribution of an observation given the values of functions.

With q(f) = N(mean, variance) for each row, three integrals are needed for each observation y:

    expected_log_prob       E log p(y | f)       the term of the bound
    predictive_log_prob     log E p(y | f)       the density of a new observation
    predict_observations    E y, Var y           its moments
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._parameters import ParametrisedModule
from lapgrad.models._prediction import Prediction
from lapgrad.models._storage.entries import TEXT, check_entries

#: Nodes of the Gauss-Hermite rule: polynomials of f up to degree 39 are integrated exactly.
_NODES = 20

#: All classes of likelihoods by name, including those of users: files refer to them by name.
_KINDS: dict[str, type[Likelihood]] = {}


class Start(NamedTuple):
    """A Gaussian approximation of the likelihood at a constant, from which a fit starts.

    Attributes:
        constant: (k,), the means of the functions.
        targets: (n, k), the targets of a regression for the functions minus their means.
        noise_var: A scalar, the variance of the targets around the functions.
    """

    constant: Tensor
    targets: Tensor
    noise_var: Tensor


class Likelihood(ParametrisedModule, abc.ABC):
    """The distribution p(y | f) of an observation given the values f (k) of the functions of a model.

    Hyper-parameters are declared as in a kernel (``positive()``), and are learned with those of the model.

    Attributes:
        standardises: Whether a model with ``normalise=True`` shifts and scales observations.
    """

    standardises: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _KINDS[cls.__name__] = cls

    @abc.abstractmethod
    def count_functions(self, y: Tensor) -> int:
        """Return k, the number of functions, for observations y (n, m)."""

    @abc.abstractmethod
    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise OptionError if a value of y (n, m) cannot be observed."""

    @abc.abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | f), (..., n), for f (..., n, k) and y (n, m)."""

    @abc.abstractmethod
    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return E log p(y | f) over f ~ N(mean, variance), (..., n).

        Args:
            mean: (..., n, k).
            variance: (..., n, k).
            y: (n, m).
            normals: (count_normals, n, k), standard normal numbers; None if ``count_normals`` is 0.
        """

    @abc.abstractmethod
    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log E p(y | f) over f ~ N(mean, variance), (..., n); shapes as in ``expected_log_prob``."""

    @abc.abstractmethod
    def predict_observations(self, mean: Tensor, variance: Tensor) -> Prediction:
        """Return mean and variance (..., n, m) of y; for classes the probabilities, and their variances."""

    @abc.abstractmethod
    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return draws of y (..., n, m) given f (..., n, k)."""

    @abc.abstractmethod
    def approximate(self, y: Tensor) -> Start:
        """Return the Gaussian approximation of p(y | f), y (n, m), from which a fit starts."""

    def find_function_units(self, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return factors and offsets (k,) from functions of standardised observations to those of y.

        Args:
            shift: (m,), subtracted from the columns of y.
            scale: (), by which all of them are divided. Default: each function has the units of its column.
        """
        return scale.expand_as(shift), shift

    @property
    def count_normals(self) -> int:
        """How many standard normal numbers per row and function ``expected_log_prob`` takes."""
        return 0

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor without hyper-parameters, in types that JSON knows."""
        return {"kind": type(self).__name__}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Likelihood:
        """Return a likelihood of this description; its hyper-parameters are filled in later."""
        return cls()


class ElementwiseLikelihood(Likelihood):
    """A likelihood of one function per observed number: integrals over it are sums over 20 nodes.

    A subclass gives ``log_density`` and ``conditional_moments``, and what draws, checks and starts need. It
    overrides an integral that has a closed form.
    """

    @abc.abstractmethod
    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | f) of each number."""

    @abc.abstractmethod
    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y given f, of each number."""

    def count_functions(self, y: Tensor) -> int:
        """Return m: one function per column of y."""
        return y.shape[1]

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | f), summed over the columns."""
        return self.log_density(f, y).sum(-1)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return E log p(y | f), summed over the columns."""
        return integrate(lambda f: self.log_density(f, y), mean, variance).sum(-1)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log E p(y | f), summed over the columns."""
        nodes, weights = place_nodes(mean, variance)
        each = self.log_density(nodes, y) + weights.log().view(-1, *(1,) * mean.dim())
        return each.logsumexp(0).sum(-1)

    def predict_observations(self, mean: Tensor, variance: Tensor) -> Prediction:
        """Return mean and variance of y."""
        nodes, weights = place_nodes(mean, variance)
        weights = weights.view(-1, *(1,) * mean.dim())
        means, variances = self.conditional_moments(nodes)
        centre = (weights * means).sum(0)
        return Prediction(centre, (weights * (variances + (means - centre).square())).sum(0))


def place_nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes (20, *shape) and weights (20,) of the Gauss-Hermite rule for N(mean, variance)."""
    positions, weights = (torch.tensor(part, dtype=torch.float64).to(mean) for part in _compute_rule())
    # The square root has no gradient at 0.
    deviation = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    return mean + deviation * positions.view(-1, *(1,) * mean.dim()), weights


def integrate(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Return E function(f) over f ~ N(mean, variance), of each number."""
    nodes, weights = place_nodes(mean, variance)
    return (weights.view(-1, *(1,) * mean.dim()) * function(nodes)).sum(0)


@functools.cache
def _compute_rule() -> tuple[list[float], list[float]]:
    """Return nodes and weights for a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return nodes.tolist(), (weights / math.sqrt(2.0 * math.pi)).tolist()


def likelihood_from_config(config: Mapping[str, Any]) -> Likelihood:
    """Return the likelihood that ``config`` describes.

    Raises:
        FileFormatError: No likelihood of that name is known.
    """
    check_entries(config, {"kind": TEXT}, "a likelihood")
    kind = _KINDS.get(config["kind"])
    if kind is None:
        raise _exceptions.FileFormatError(
            f"load: the likelihood {config['kind']} is not known. Import the module that defines it first."
        )
    return kind.from_config(config)


def require(who: str, name: str, fits: Tensor, wanted: str) -> None:
    """Raise OptionError unless all of ``fits`` (n, m) is true, with the first rows where it is not."""
    if not bool(fits.all()):
        rows = (~fits).any(-1).nonzero().squeeze(-1)[:5].tolist()
        raise _exceptions.OptionError(f"{who}: {name} must be {wanted}; not so in rows {rows}.")
