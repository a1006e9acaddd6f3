"""A value that takes long to compute, cached until the tensors that it depends on change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor

_Value = TypeVar("_Value")


class CachedValue(Generic[_Value]):
    """One cached value, with copies of the tensors that it was computed from.

    Example:
        >>> x, square = torch.tensor(3.0), CachedValue()
        >>> square([x], lambda: x.item() ** 2)
        9.0
        >>> x += 1.0
        >>> square([x], lambda: x.item() ** 2)
        16.0
    """

    def __init__(self) -> None:
        self._known: tuple[list[Tensor], _Value] | None = None

    def __call__(self, tensors: Iterable[Tensor], compute: Callable[[], _Value]) -> _Value:
        """Return the result of ``compute``; it is called only if a tensor has changed since the last call."""
        present = [tensor.detach() for tensor in tensors]
        if self._known is None or not _are_equal(self._known[0], present):
            self._known = [tensor.clone() for tensor in present], compute()
        return self._known[1]

    def clear(self) -> None:
        """Free the value and the copies."""
        self._known = None


def _are_equal(before: list[Tensor], now: list[Tensor]) -> bool:
    return len(before) == len(now) and all(
        one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
        for one, other in zip(before, now, strict=True)
    )
