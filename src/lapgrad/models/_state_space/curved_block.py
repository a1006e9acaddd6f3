"""Matrices of a component that are not linear in its hyper-parameters, with their derivatives, for fits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


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
