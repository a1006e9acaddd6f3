"""Predictions of each observation from all others, in closed form.

With A = L Lᵀ the covariance of the observations, r their residuals and P = A⁻¹, the observation i given all
others is normal (Rasmussen and Williams, 2006, section 5.4.2) with

    mean = y_i - [P r]_i / P_ii,   variance = 1 / P_ii
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models._prediction import compute_log_density
from lapgrad.ops.potrf import potrf
from lapgrad.ops.potri import potri


class LeaveOneOut(NamedTuple):
    """What the model predicts for each of its n observations from all others, noise included.

    Objects of pandas, or arrays, if the data of the model were.

    Attributes:
        mean: (n,), or (n, k) for k outputs.
        variance: (n,), shared by the outputs.
        log_density: (n,) or (n, k), of the observation itself.
        residuals: (n,) or (n, k), observations minus means, in units of their deviations: standard normal if
            the model is right.
    """

    mean: Tensor
    variance: Tensor
    log_density: Tensor
    residuals: Tensor

    @property
    def rmse(self) -> float:
        """The root mean square of the errors, in the units of y."""
        residuals, variance = _read_numbers(self.residuals), _read_numbers(self.variance)
        variance = variance[:, None] if residuals.ndim > 1 else variance
        return float(np.sqrt((residuals**2 * variance).mean()))

    def compute_coverage(self, level: float = 0.95) -> float:
        """Return the fraction of observations that lie in their central interval of this probability."""
        if not 0.0 < level < 1.0:
            raise _exceptions.OptionError(f"compute_coverage: level must be between 0 and 1, got {level!r}.")
        half = NormalDist().inv_cdf(0.5 + 0.5 * level)
        return float((np.abs(_read_numbers(self.residuals)) <= half).mean())


def _read_numbers(values: Any) -> Any:
    """Return a tensor, an array or an object of pandas as an array of NumPy."""
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def compute_leave_one_out(L: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return errors (*batch, n, k) and variances (*batch, n) of the predictions from all others.

    Args:
        L: (*batch, n, n), the Cholesky factor of A.
        residuals: (*batch, n, k) or (n, k).
    """
    precision = potri(L).diagonal(dim1=-2, dim2=-1)
    return cho_solve(L, residuals) / precision[..., None], precision.reciprocal()


def compute_loo_nll(A: Tensor, residuals: Tensor) -> Tensor:
    """Return -Σ log p(y_i | all others), (*batch), for A (*batch, n, n), whose lower triangle is read.

    Differentiable; the matrix may be overwritten.
    """
    errors, variances = compute_leave_one_out(potrf(A), residuals)
    return -compute_log_density(errors, variances[..., None]).sum((-2, -1))
