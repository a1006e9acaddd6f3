"""cuSOLVER on tensors: handles, types and work space.

A handle must not be used by two threads at a time, so every thread has its own, one per device. Handles are
kept for good: cuSOLVER takes milliseconds to make one. cuSOLVER counts columns first: a row-major matrix is
to it the transpose of the same memory.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import stream as _stream

#: cudaDataType of real numbers.
DATA_TYPES = {torch.float32: 0, torch.float64: 1}

VALUES_ONLY, WITH_VECTORS = 0, 1  # CUSOLVER_EIG_MODE_*
LOWER, UPPER = 0, 1  # CUBLAS_FILL_MODE_*, of the matrix as cuSOLVER reads it

_made = threading.local()


def handle(device: int) -> int:
    """The calling thread's handle for a device, the current one, set to torch's current stream."""
    kept = _kept(device)
    routine("set_stream")(kept[0], _stream.current_stream(device))
    return kept[0]


def parameters(device: int) -> int:
    """What the routines named X... want beside a handle: the choices of algorithm, all left as they are."""
    return _kept(device)[1]


@functools.cache
def routine(name: str) -> Any:
    """A function of ``nvmath.bindings.cusolverDn``; it raises when cuSOLVER refuses its arguments."""
    from nvmath.bindings import cusolverDn

    return getattr(cusolverDn, name)


def work_space(device_bytes: int, host_bytes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Memory on the device of ``like`` and on the host. The caller keeps both until the routine returns."""
    return (
        torch.empty(max(device_bytes, 1), dtype=torch.uint8, device=like.device),
        torch.empty(max(host_bytes, 1), dtype=torch.uint8, device="cpu"),
    )


def _kept(device: int) -> tuple[int, int]:
    """(handle, parameters) of this thread and device. The device is the current one."""
    by_device: dict[int, tuple[int, int]] | None = getattr(_made, "by_device", None)
    if by_device is None:
        by_device = _made.by_device = {}
    if device not in by_device:
        by_device[device] = routine("create")(), routine("create_params")()
    return by_device[device]
