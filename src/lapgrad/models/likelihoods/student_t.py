"""StudentT: numbers with outliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._parameters import above, positive
from lapgrad.models.likelihoods.base import ElementwiseLikelihood, Start, require


class StudentT(ElementwiseLikelihood):
    """y = f + scale t, t of Student's distribution with ``df`` degrees of freedom; a function per column.

    Outliers move f little. As df grows the distribution becomes normal.

    Args:
        df: Degrees of freedom, more than 2, so that there is a variance; learned.
        scale: In standardised units, if the model standardises; learned.

    Example:
        >>> from lapgrad.models.likelihoods import StudentT
        >>> StudentT(df=5.0, scale=0.1).hyperparameters()["df"].item()
        5.0
    """

    standardises = True
    df_floor: Tensor
    df = above("df_floor")
    scale = positive()

    def __init__(self, df: float = 4.0, scale: float = 0.3) -> None:
        super().__init__()
        if not df > 2.0:
            raise _exceptions.OptionError(f"StudentT: df must be more than 2, got {df!r}.")
        self.register_buffer("df_floor", torch.tensor(2.0))
        self.df = df
        self.scale = scale

    def check_observations(self, who: str, y: Tensor, name: str = "y") -> None:
        """Raise unless all are finite."""
        require(who, name, y.isfinite(), "finite")

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the log density of Student's distribution at (y - f) / scale, less log scale."""
        df, scale = self.df, self.scale
        constant = torch.lgamma(0.5 * (df + 1.0)) - torch.lgamma(0.5 * df) - 0.5 * (math.pi * df).log()
        return constant - scale.log() - 0.5 * (df + 1.0) * torch.log1p(((y - f) / scale).square() / df)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return f, and scale² df / (df - 2)."""
        return f, (self.scale.square() * self.df / (self.df - 2.0)).expand_as(f)

    def draw_observations(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return f + scale t, t = sqrt(df (u^(-2 / df) - 1)) cos(2 pi v) with uniform u, v (Bailey 1994)."""
        u, v = torch.rand((2, *f.shape), dtype=f.dtype, device=f.device, generator=generator)
        radius = (self.df * torch.expm1(-2.0 / self.df * torch.log1p(-u))).sqrt()
        return f + self.scale * radius * torch.cos(2.0 * math.pi * v)

    def approximate(self, y: Tensor) -> Start:
        """Return y = f + noise with a Gaussian noise of the same variance, and f around the median of y."""
        centre, df = y.median(0).values, self.df.detach()
        return Start(centre, y - centre, self.scale.detach().square() * df / (df - 2.0))
