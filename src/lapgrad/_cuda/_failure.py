"""Failures of a batch: one number on the device, read by the host once, or not at all.

Kernels put the smallest 4 item + code there (``report_failure`` in ``kernels/spectral.cuh``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad._cuda import _stream

_NONE = 2**62


def cell(like: Tensor) -> Tensor:
    """The number before any failure, on the device of ``like``."""
    return torch.full((), _NONE, dtype=torch.int64, device=like.device)


def first(reported: Tensor) -> tuple[int, int] | None:
    """(item, code) of the first item that failed. While a graph is recorded nothing is read: None."""
    if reported.is_cuda and _stream.being_captured():
        return None
    found = int(reported.item())
    return None if found == _NONE else divmod(found, 4)


def first_of(codes: Tensor) -> tuple[int, int] | None:
    """(item, code) of the first code of a batch that is not 0. Asks the device once when all went well."""
    if not bool(codes.any()):
        return None
    item = int((codes != 0).int().argmax())
    return item, int(codes[item])
