"""Buffers for the factors that det and slogdet keep for the backward."""

from __future__ import annotations

import torch
from torch import Tensor

#: Up to this order the factors are not kept: computing them again is faster than writing and reading them.
RECOMPUTED = 32


def allocate_factors(A: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised LU (*batch, n, n) and pivots (*batch, n); empty matrices where they are not kept."""
    *batch, n, _ = A.shape
    kept = n if n > RECOMPUTED else 0
    return A.new_empty((*batch, kept, kept)), A.new_empty((*batch, kept), dtype=torch.int32)
