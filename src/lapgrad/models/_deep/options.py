"""Checks of the options of ``DeepGP``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lapgrad import _errors, _exceptions
from lapgrad.models._deep.sparse_layer import COVARIANCES
from lapgrad.models.kernels.base import Kernel


def check_options(
    who: str,
    widths: Sequence[int],
    hidden: Sequence[int],
    inducing: int,
    kernels: Sequence[Kernel] | None,
    noise_var: float | None,
    covariance: str,
) -> None:
    """Raise an ``OptionError`` that names the first invalid option of ``DeepGP``; ``who`` is for messages."""

    def is_positive(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value > 0

    if not widths or not all(map(is_positive, widths)):
        raise _exceptions.OptionError(f"{who}: widths must be positive numbers, one per layer, got {widths}.")
    if not all(map(is_positive, hidden)):
        raise _exceptions.OptionError(f"{who}: hidden must be positive numbers, got {hidden}.")
    if not is_positive(inducing):
        raise _exceptions.OptionError(f"{who}: inducing must be a positive number, got {inducing!r}.")
    if kernels is not None and len(kernels) != len(widths):
        raise _exceptions.OptionError(f"{who}: {len(kernels)} kernels for {len(widths)} layers.")
    if noise_var is not None and not 0.0 < noise_var < math.inf:
        raise _exceptions.OptionError(f"{who}: noise_var must be positive and finite, got {noise_var}.")
    if covariance not in COVARIANCES:
        raise _errors.unknown_option(who, "covariance", covariance, COVARIANCES)
