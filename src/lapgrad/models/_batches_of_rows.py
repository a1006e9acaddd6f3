"""Minibatches: rows of the data, of which each is equally likely in every step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def rows(
    n: int, size: int, device: torch.device, generator: torch.Generator | None
) -> Iterator[Tensor | slice]:
    """Without end: ``size`` numbers of rows at a time, in a new random order in each pass over the data.

    A batch may begin in one pass and end in the next. If the data fit into one batch, all of them are taken,
    as they lie.
    """
    if size >= n:
        while True:
            yield slice(None)
    left = torch.empty(0, dtype=torch.int64, device=device)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(n, generator=generator, device=device)])
        yield left[:size]
        left = left[size:]
