"""Categorical: one of several classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._prediction import Prediction
from lapgrad.models._storage.entries import INTEGER, check_entries
from lapgrad.models.likelihoods.base import Likelihood, Start, require

#: Pairs of a sample and its mirror image, in the bound.
_PAIRS = 4
#: Points of a Sobol sequence, in predictions.
_POINTS = 256


class Categorical(Likelihood):
    """p(y = c | f) = exp(f_c) / sum_j exp(f_j): one function per class, y the number of the class.

    The expectation in the bound is the mean of 8 samples, 4 of them mirror images of the others; that of
    predictions a sum over 256 points of a Sobol sequence, which are the same in every call.

    Args:
        classes: How many.

    Example:
        >>> import torch
        >>> from lapgrad.models.likelihoods import Categorical
        >>> Categorical(4).log_prob(torch.zeros(1, 4), torch.tensor([[2]])).exp()
        tensor([0.2500])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
            raise _exceptions.OptionError(f"Categorical: classes must be a number >= 2, got {classes!r}.")
        self.classes = classes

    @property
    def count_normals(self) -> int:
        """4: each is used with both signs."""
        return _PAIRS

    def count_functions(self, y: Tensor) -> int:
        """Return the number of classes."""
        return self.classes

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless y is one column of numbers of classes."""
        if y.shape[1] != 1:
            raise _exceptions.OptionError(f"{who}: {name} must be one column for Categorical.")
        wanted = f"whole numbers from 0 to {self.classes - 1}"
        require(who, name, (y >= 0) & (y < self.classes) & (y == y.floor()), wanted)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the softmax of f at y."""
        chosen = y.long().expand(*f.shape[:-1], 1)
        return f.gather(-1, chosen).squeeze(-1) - f.logsumexp(-1)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, normals: Tensor | None) -> Tensor:
        """Return E f_y - E log sum exp(f), the latter by samples."""
        assert normals is not None
        chosen = mean.gather(-1, y.long().expand(*mean.shape[:-1], 1)).squeeze(-1)
        # The square root has no gradient at 0.
        deviation = variance.clamp_min(torch.finfo(mean.dtype).eps).sqrt()
        normals = normals.view(len(normals), *(1,) * (mean.dim() - 2), *normals.shape[1:])
        f = torch.cat((mean + deviation * normals, mean - deviation * normals))
        return chosen - f.logsumexp(-1).mean(0)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the probability of y."""
        probabilities = self.predict_observations(mean, variance).mean
        return probabilities.gather(-1, y.long().expand(*mean.shape[:-1], 1)).squeeze(-1).log()

    def predict_observations(self, mean: Tensor, variance: Tensor) -> Prediction:
        """Return the probability p of each class, and p (1 - p), both (..., n, classes)."""
        deviation = variance.sqrt()
        p = torch.zeros_like(mean)
        for normal in _make_points(self.classes).to(mean):
            p = p + (mean + deviation * normal).softmax(-1)
        p = p / _POINTS
        return Prediction(p, p * (1.0 - p))

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return numbers of classes, (..., n, 1)."""
        p = f.softmax(-1).reshape(-1, self.classes)
        return torch.multinomial(p, 1, generator=generator).reshape(*f.shape[:-1], 1)

    def approximate(self, y: Tensor) -> Start:
        """Return a step of Newton's method at 0, with p = 1 / classes: (one at y - p) / p (1 - p)."""
        member = torch.nn.functional.one_hot(y[:, 0].long(), self.classes).to(y)
        p = 1.0 / self.classes
        spread = p * (1.0 - p)
        return Start(y.new_zeros(self.classes), (member - p) / spread, y.new_tensor(1.0 / spread))

    def config(self) -> dict[str, Any]:
        """Return the number of classes."""
        return {**super().config(), "classes": self.classes}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Likelihood:
        """Return a likelihood of as many classes."""
        check_entries(config, {"classes": INTEGER}, "the likelihood Categorical")
        return cls(config["classes"])


def _make_points(dimension: int) -> Tensor:
    """Return points (256, dimension) of a standard normal distribution, spread evenly."""
    uniform = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0).draw(
        _POINTS, dtype=torch.float64
    )
    return torch.special.ndtri(uniform.clamp(1e-9, 1.0 - 1e-9))
