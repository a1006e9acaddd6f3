"""Signs that a decomposition leaves open: the first entry of nearly the largest size is positive."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import torch
from torch import Tensor

#: Entries that differ in size by less than this, relatively, count as equal.
NEARLY = 1e-6

_MARGINS: contextvars.ContextVar[list[float] | None] = contextvars.ContextVar("margins", default=None)


def find_decisive_signs(U: Tensor) -> Tensor:
    """1 or -1, (*batch, m, 1): for each row of ``U`` the sign of its first entry of nearly largest size."""
    U = U.detach()
    if not U.numel():
        return U.new_ones((*U.shape[:-1], 1))
    size = U.abs()
    largest = size.amax(-1, keepdim=True)
    margins = _MARGINS.get()
    if margins is not None and U.shape[-1] > 1:
        second = size.topk(2, -1).values[..., 1:]
        margins.append(float((1 - second / largest).min()))
    first = (size >= (1 - NEARLY) * largest).int().argmax(-1, keepdim=True)
    return torch.where(U.gather(-1, first) < 0, -1.0, 1.0).to(U.dtype)


@contextlib.contextmanager
def watch_margins() -> Iterator[list[float]]:
    """While active, collects by how much the largest entries of rows exceed the second largest, relatively.

    Where that is not more than the rounding errors of another computation, it may choose the other sign.
    """
    margins: list[float] = []
    token = _MARGINS.set(margins)
    try:
        yield margins
    finally:
        _MARGINS.reset(token)
