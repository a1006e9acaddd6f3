"""Initial inducing inputs: rows of the data that are far from each other."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.models import _checks

INITIALISATIONS = ("kmeans++", "random")


def resolve_inducing_inputs(
    who: str, inducing: int | Tensor, X: Tensor, init: str, generator: torch.Generator | None
) -> Tensor:
    """Return the inducing inputs (U, d) that the option ``inducing`` of a model asks for.

    Args:
        who: Name of the model, for messages.
        inducing: The inputs (U, d) or (U,) themselves, or how many rows of X to choose.
        X: (n, d).
        init: How rows are chosen, see ``choose_rows``.
        generator: Source of random numbers.
    """
    if isinstance(inducing, Tensor):
        Z = _checks.check_inputs(who, inducing.detach(), "inducing", columns=X.shape[1])
        _checks.check_same_kind(who, X=X, inducing=Z)
        return Z.clone()
    if isinstance(inducing, bool) or not isinstance(inducing, int) or inducing < 1:
        raise _errors.OptionError(f"{who}: inducing must be a positive number or a tensor, got {inducing!r}.")
    return choose_rows(X, inducing, init, generator)


def choose_rows(X: Tensor, count: int, init: str, generator: torch.Generator | None) -> Tensor:
    """Return ``count`` different rows of X (n, d), or all different rows if there are fewer.

    Args:
        X: (n, d).
        count: How many.
        init: "kmeans++": each with a probability proportional to its squared distance from those chosen
            before, with standardised columns. "random": all with the same probability.
        generator: Source of random numbers.
    """
    if init == "random":
        order = torch.randperm(len(X), generator=generator, device=X.device)
        return X[order[:count]].clone()
    return X[_choose_spread_rows(_standardise(X), min(count, len(X)), generator)].clone()


def _standardise(X: Tensor) -> Tensor:
    """Return X with standardised columns; constant columns are only shifted, as distances ignore them."""
    if len(X) < 2:
        return X
    deviation = X.std(0)
    return (X - X.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def _choose_spread_rows(X: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Return the indices of up to ``count`` different rows, chosen by k-means++ in n d operations each."""
    index = torch.randint(len(X), (1,), generator=generator, device=X.device)
    rows = [index]
    distances = (X - X[index]).square().sum(-1)
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
