"""congruence: the gradient of an inverse, in plain PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def congruence(C: Tensor, B: Tensor, G: Tensor) -> Any:
    """C := -1/2 B (G + G^T) B for a symmetric B. NotImplemented: a few products, which the caller runs."""
    return NotImplemented
