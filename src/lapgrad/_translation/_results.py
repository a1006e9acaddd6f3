"""Memory for results, laid out as torch lays out those of its factorisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def column_major(like: Tensor, rows: int, columns: int) -> Tensor:
    """An uninitialised tensor (*batch of ``like``, rows, columns) whose matrices are column-major."""
    return column_major_batch(like, like.shape[:-2], rows, columns)


def column_major_batch(like: Tensor, batch: Sequence[int], rows: int, columns: int) -> Tensor:
    """The same with leading dimensions ``batch``."""
    if not batch:
        return torch.empty_strided((rows, columns), (1, max(rows, 1)), dtype=like.dtype, device=like.device)
    strides = [1, max(rows, 1)]
    step = max(rows, 1) * max(columns, 1)
    for size in reversed(batch):
        strides.insert(0, step)
        step *= max(size, 1)
    return torch.empty_strided((*batch, rows, columns), strides, dtype=like.dtype, device=like.device)


def status(like: Tensor) -> Tensor:
    """Zeros, int32, one per matrix of ``like``: every factorisation has succeeded."""
    return like.new_zeros(like.shape[:-2], dtype=torch.int32)


def count_items(A: Tensor) -> int:
    """How many matrices ``A`` holds."""
    return 1 if A.dim() == 2 else math.prod(A.shape[:-2])
