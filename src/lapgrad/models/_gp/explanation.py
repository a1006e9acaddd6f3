"""Whether a fitted Gaussian process explains anything: it is compared with noise around the mean."""

from __future__ import annotations

import math
import warnings

from lapgrad import _exceptions

_LEAST_GAIN = 1e-3
"""Nats per observation that the best fit must gain over noise."""


def warn_if_nothing_is_explained(who: str, count: int, variance: float, loss: float) -> None:
    """Warn if ``loss`` of ``count`` observations is no better than that of independent noise of ``variance``.

    This happens if the lengthscale is far below the distances of the points, or far above their range: the
    fit has converged, because the loss is flat, but has found only noise.

    Warns:
        FitWarning: The log likelihood per observation is better by less than 1e-3; or all targets are equal,
            so that the likelihood is the larger the smaller the variances are.
    """
    if not variance > 0.0:
        warnings.warn(
            f"{who}.fit: all targets are equal, so the variances have been learned down to their lower "
            f"limits, and predictions are far too certain. Set priors of the variances, or do not fit.",
            _exceptions.FitWarning,
            stacklevel=4,
        )
        return
    of_noise = 0.5 * count * (math.log(2.0 * math.pi * variance) + 1.0)
    if loss > of_noise - _LEAST_GAIN * count:
        warnings.warn(
            f"{who}.fit: the fit explains nothing: its log likelihood, {-loss:.4g}, is not better than that "
            f"of independent noise, {-of_noise:.4g}. Start from other hyper-parameters (those that are not "
            f"given start from the data), or choose another kernel.",
            _exceptions.FitWarning,
            stacklevel=4,
        )
