"""torch's own kernels, kept so that they can be called while an override stands in front of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private


@functools.cache
def find_kernel(operator: str, device: str) -> Any:
    """The kernel that torch itself has for ``operator`` ("linalg_qr", "linalg_qr.out") on "cpu" or "cuda".

    The answer is kept: it must be asked for before an override is installed.
    """
    return torch.library.get_kernel(f"aten::{operator}", _torch_private.get_backend_keys(device).backend)


@functools.cache
def _get_keyset(device: str) -> Any:
    return _torch_private.get_backend_keys(device).keyset


def run_torch(operator: str, *arguments: Any, **options: Any) -> Any:
    """What torch's own kernel returns for plain tensors, whether or not overrides are installed."""
    device = next(argument for argument in arguments if isinstance(argument, Tensor)).device.type
    return find_kernel(operator, device).call_boxed(_get_keyset(device), *arguments, **options)
