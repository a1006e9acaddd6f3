"""Memory for results, laid out as torch lays out those of its factorisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private
from lapgrad._torch.pages import use_huge_pages


def allocate_column_major(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return an uninitialised tensor (*batch of ``like``, rows, columns) whose matrices are column-major."""
    return allocate_column_major_batch(like, like.shape[:-2], rows, columns)


def allocate_column_major_batch(like: Tensor, batch: Sequence[int], rows: int, columns: int) -> Tensor:
    """Return the same with leading dimensions ``batch``."""
    if not batch:
        new = torch.empty_strided((rows, columns), (1, max(rows, 1)), dtype=like.dtype, device=like.device)
        return use_huge_pages(new)
    strides = [1, max(rows, 1)]
    step = max(rows, 1) * max(columns, 1)
    for size in reversed(batch):
        strides.insert(0, step)
        step *= max(size, 1)
    new = torch.empty_strided((*batch, rows, columns), strides, dtype=like.dtype, device=like.device)
    return use_huge_pages(new)


def allocate_status(like: Tensor) -> Tensor:
    """Zeros, int32, one per matrix of ``like``: every factorisation has succeeded."""
    return like.new_zeros(like.shape[:-2], dtype=torch.int32)


def count_items(A: Tensor) -> int:
    """How many matrices ``A`` holds."""
    return 1 if A.dim() == 2 else math.prod(A.shape[:-2])


def fits_target(target: Tensor, value: Tensor) -> bool:
    """Whether ``value`` can be copied to ``target`` without a conversion, a warning or an error."""
    return (
        target.dtype is value.dtype
        and target.device == value.device
        and (target.shape == value.shape or not target.numel())
        and not _torch_private.has_internal_overlap(target)
    )


def write_target(target: Tensor, value: Tensor) -> None:
    """target := value; an empty target gets the size and the strides of the value, as torch does it."""
    if target.shape != value.shape:
        target.resize_(value.shape)
        target.as_strided_(value.shape, value.stride())
    target.copy_(value)
