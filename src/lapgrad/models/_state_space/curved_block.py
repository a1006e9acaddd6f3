"""Matrices of a component that are not linear in its hyper-parameters, with their derivatives, for fits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_LEAST_PART = 1e-10
"""If the noise of a step is a smaller part of the variance of a process, few digits of that are right."""


class CurvedBlock(NamedTuple):
    """Transition and prior of a component with n states at k raw hyper-parameters other than its variance.

    Its Q is the variance times a constant, and its P the variance times ``prior``. Short series take less
    time to filter than autograd takes for such matrices.

    Attributes:
        transition: (n, n), the matrix A.
        transition_slopes: (k, n, n), its derivatives.
        prior: (n, n).
        prior_slopes: (k, n, n), its derivatives.
    """

    transition: Array
    transition_slopes: Array
    prior: Array
    prior_slopes: Array


def compute_stationary_variance(part: float) -> float:
    """Return 1 / part, the variance of a stationary process whose steps have noise of variance 1.

    It is NaN for a process that is nearly not stationary: a search then steps back.

    Args:
        part: The variance of the noise, as a part of that of the process.
    """
    return 1.0 / part if part > _LEAST_PART else math.nan


def squash_number(raw: float, low: float, high: float) -> tuple[float, float]:
    """Return the value of one raw number under the map of ``bounded(low, high)``, and its derivative."""
    small = math.exp(-abs(raw))
    part = (small if raw < 0.0 else 1.0) / (1.0 + small)
    return low + (high - low) * part, (high - low) * part * (1.0 - part)


def squash(raw: Array, low: float, high: float) -> tuple[Array, Array]:
    """Return the values of raw numbers under the map of ``bounded(low, high)``, and their derivatives."""
    small = np.exp(-np.abs(raw))
    part = np.where(raw < 0.0, small, 1.0) / (1.0 + small)
    return low + (high - low) * part, (high - low) * part * (1.0 - part)
