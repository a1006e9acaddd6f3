"""A context in which waiting for the device is an error."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def forbid_waits() -> Iterator[None]:
    """While active, functions of torch that wait for the device raise an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
