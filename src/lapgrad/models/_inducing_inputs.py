"""Where inducing inputs start: rows of the data, far from each other."""

from __future__ import annotations

import torch
from torch import Tensor

INITIALISATIONS = ("kmeans++", "random")


def chosen(X: Tensor, count: int, init: str, generator: torch.Generator | None) -> Tensor:
    """``count`` rows of X (n, d), or all there are if there are fewer; none twice.

    Args:
        X: (n, d).
        count: How many.
        init: "kmeans++": each with a probability proportional to its squared distance from those chosen
            before, all columns in units of their standard deviation. "random": each with the same
            probability.
        generator: Source of random numbers.
    """
    if init == "random":
        order = torch.randperm(len(X), generator=generator, device=X.device)
        return X[order[:count]].clone()
    return X[_spread_rows(_standardised(X), min(count, len(X)), generator)].clone()


def _standardised(X: Tensor) -> Tensor:
    """Columns that do not vary stay as they are: they do not contribute to distances."""
    if len(X) < 2:
        return X
    deviation = X.std(0)
    return (X - X.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def _spread_rows(X: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """k-means++: n d operations per row. Ends early when all rows have been met."""
    index = torch.randint(len(X), (1,), generator=generator, device=X.device)
    rows = [index]
    distances = (X - X[index]).square().sum(-1)
    while len(rows) < count:
        # Sampling from cumulative sums: torch.multinomial takes 2^24 weights at most.
        total = distances.cumsum(0)
        if not total[-1] > 0:
            break
        threshold = torch.rand(1, dtype=X.dtype, device=X.device, generator=generator) * total[-1]
        index = torch.searchsorted(total, threshold, right=True).clamp_max(len(X) - 1)
        if not distances[index] > 0:  # the threshold was rounded to the very end
            index = distances.argmax(keepdim=True)
        rows.append(index)
        torch.minimum(distances, (X - X[index]).square().sum(-1), out=distances)
    return torch.cat(rows)
