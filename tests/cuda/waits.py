"""The host must not wait for the device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def forbid_waits() -> Iterator[None]:
    """Whatever in torch waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
