"""Values of hyper-parameters to start learning from, found in the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_LONGEST_SERIES = 1024
"""Observations that the search for a period looks at, at most: its cost grows with their square."""
_FREQUENCIES_PER_CYCLE = 4
"""Frequencies that are tried between j and j + 1 periods in the range of the data."""
_FEWEST_CYCLES = 1.5
"""A period must fit into the range of the data so many times, or it cannot be told from a trend."""


def compute_lengthscale(X: Tensor, per_dimension: bool) -> Tensor:
    """Return the root mean square distance of two points of X (n, d), divided by √2: one for all dimensions.

    With ``per_dimension`` (d,): √d times the same of each coordinate, so that distances in units of the
    lengthscales have the same size. Where all points are equal it is 1.
    """
    variances = X.var(0, correction=0)
    # Below this the coordinates differ by rounding only.
    rounding = (10.0 * torch.finfo(X.dtype).eps * X.abs().amax(0)).square()
    variances = torch.where(variances > rounding, variances, 0.0)
    squares = variances * max(1, X.shape[1]) if per_dimension else variances.sum()
    return torch.where(squares > 0, squares, 1.0).sqrt()


def divide(variance: Tensor, square: Tensor) -> Tensor:
    """Return variance / square, or variance if the square is 0."""
    return variance / torch.where(square > 0, square, 1.0)


def expand_to_dimensions(module: nn.Module, name: str, d: int) -> None:
    """Turn a scalar hyper-parameter into one per dimension (d,), all with its value."""
    raw = module.get_parameter(f"raw_{name}")
    if not raw.dim():
        expanded = nn.Parameter(raw.detach().expand(d).clone(), requires_grad=raw.requires_grad)
        module.register_parameter(f"raw_{name}", expanded)


def find_period(X: Tensor, y: Tensor) -> float:
    """Return the period of the sinusoid of one column of X (n, d) that fits the first column of y (n, k)
    best.

    By least squares at each of many frequencies, after a straight line has been subtracted (the periodogram
    of Lomb and Scargle, which needs no regular spacing). Without an answer: a quarter of the range of the
    points, or 1.
    """
    best, period = 0.0, math.nan
    for x in X.double().unbind(1):
        power, candidate = _find_strongest_sinusoid(x, y[:, 0].double())
        if power > best or math.isnan(period):
            best, period = power, candidate
    return 1.0 if math.isnan(period) else period


def _find_strongest_sinusoid(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the part of the variance of y (n,) that the best sinusoid of x (n,) explains, and its period."""
    order = x.argsort()[:_LONGEST_SERIES]
    x, y = x[order] - x[order].mean(), y[order] - y[order].mean()
    width = float(x[-1] - x[0]) if len(x) else 0.0
    if not width > 0.0:
        return 0.0, 1.0
    y = y - x * (x @ y) / (x @ x)
    cycles = torch.arange(
        _FEWEST_CYCLES, max(2.0, len(x) / 2), 1.0 / _FREQUENCIES_PER_CYCLE, dtype=x.dtype, device=x.device
    )
    angles = (2.0 * math.pi / width) * cycles[:, None] * x
    c, s = angles.cos(), angles.sin()
    # Subtracting means gives the fit of a sinusoid and a constant.
    c, s = c - c.mean(1, keepdim=True), s - s.mean(1, keepdim=True)
    cc, ss, cs, cy, sy = c.square().sum(1), s.square().sum(1), (c * s).sum(1), c @ y, s @ y
    determinant = cc * ss - cs.square()
    is_regular = determinant > 1e-8 * cc * ss
    explained = torch.where(
        is_regular, (ss * cy.square() - 2.0 * cs * cy * sy + cc * sy.square()) / determinant, 0.0
    )
    total = float(y @ y)
    if not total > 0.0 or not bool(is_regular.any()):
        return 0.0, width / 4.0
    index = int(explained.argmax())
    return float(explained[index]) / total, width / float(cycles[index])
