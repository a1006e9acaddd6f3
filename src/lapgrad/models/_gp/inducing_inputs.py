"""Initial inducing inputs: the most informative rows of the data, or rows far from each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models import _checks
from lapgrad.models.kernels.base import Kernel
from lapgrad.models.kernels.pivoted_cholesky import pivoted_cholesky

INITIALISATIONS = ("greedy", "kmeans++", "random")

#: If the factor of "greedy" would have more numbers than this (2 GB in float64), "kmeans++" replaces it.
_LARGEST_FACTOR = 2**28


def resolve_inducing_inputs(
    who: str,
    inducing: int | Tensor,
    X: Tensor,
    init: str,
    generator: torch.Generator | None,
    kernel: Kernel,
    scale: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the inducing inputs (U, d) that the option ``inducing`` of a model asks for, in its units.

    Args:
        who: Name of the model, for messages.
        inducing: The inputs (U, d) or (U,) themselves, or how many rows of X to choose.
        X: (n, d).
        init: How rows are chosen, see ``choose_rows``.
        generator: Source of random numbers.
        kernel: The covariance of f in the units of the model, for "greedy".
        scale: From the units of X to those of the model.
    """
    if isinstance(inducing, Tensor):
        Z = _checks.check_inputs(who, inducing.detach(), "inducing", columns=X.shape[1])
        _checks.check_same_kind(who, X=X, inducing=Z)
        return scale(Z).clone()
    if not _checks.is_integer(inducing):
        raise _exceptions.OptionError(
            f"{who}: inducing must be a positive number or a tensor, got {inducing!r}."
        )
    return choose_rows(scale(X), int(inducing), init, generator, kernel)


def choose_rows(
    X: Tensor, count: int, init: str, generator: torch.Generator | None, kernel: Kernel | None = None
) -> Tensor:
    """Return ``count`` different rows of X (n, d), or all different rows if there are fewer.

    Args:
        X: (n, d).
        count: How many.
        init: "greedy": the row at which f has the largest variance given f at those chosen before. Where the
            kernel is smooth those variances vanish after a few rows, and the others are chosen by
            "kmeans++"; all of them where n is so large that n ``count`` numbers are more than 2 GB.
            "kmeans++": each with a probability proportional to its squared distance from those chosen
            before, with standardised columns. "random": all with the same probability.
        generator: Source of random numbers.
        kernel: The covariance of f, for "greedy".
    """
    if init == "random":
        order = torch.randperm(len(X), generator=generator, device=X.device)
        return X[order[:count]].clone()
    count = min(count, len(X))
    first = None
    if init == "greedy" and kernel is not None and count * len(X) <= _LARGEST_FACTOR:
        with torch.no_grad():
            first = pivoted_cholesky(kernel, X, rank=count).pivots
    return X[_choose_spread_rows(_standardise(X), count, generator, first)].clone()


def _standardise(X: Tensor) -> Tensor:
    """Return X with standardised columns; constant columns are only shifted, as distances ignore them."""
    if len(X) < 2:
        return X
    deviation = X.std(0)
    return (X - X.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def _choose_spread_rows(
    X: Tensor, count: int, generator: torch.Generator | None, first: Tensor | None
) -> Tensor:
    """Return the indices of up to ``count`` different rows, chosen by k-means++ in n d operations each.

    Args:
        X: (n, d), standardised.
        count: How many, ``first`` included.
        generator: Source of random numbers.
        first: Rows that are chosen already; None, or none: one is drawn.
    """
    if first is None or not len(first):
        first = torch.randint(len(X), (1,), generator=generator, device=X.device)
    rows = list(first.split(1))
    if len(rows) == count:
        return first
    distances = X.new_full((len(X),), torch.inf)
    for index in rows:
        torch.minimum(distances, (X - X[index]).square().sum(-1), out=distances)
    while len(rows) < count:
        # Drawn by cumulative sums, because torch.multinomial accepts at most 2^24 weights.
        total = distances.cumsum(0)
        if not total[-1] > 0:
            break
        threshold = torch.rand(1, dtype=X.dtype, device=X.device, generator=generator) * total[-1]
        index = torch.searchsorted(total, threshold, right=True).clamp_max(len(X) - 1)
        if not distances[index] > 0:  # rounding has moved the threshold to the end
            index = distances.argmax(keepdim=True)
        rows.append(index)
        torch.minimum(distances, (X - X[index]).square().sum(-1), out=distances)
    return torch.cat(rows)
