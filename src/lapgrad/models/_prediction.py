"""What models answer when they are asked about new inputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Prediction(NamedTuple):
    """A normal distribution over values at n new inputs.

    Attributes:
        mean: (n,), or (n, k) for k targets.
        variance: (n,), shared by the targets; with ``full_cov`` the covariance (n, n).
    """

    mean: Tensor
    variance: Tensor

    @property
    def covariance(self) -> Tensor:
        """What was asked for by ``full_cov=True``: (n, n)."""
        return self.variance
