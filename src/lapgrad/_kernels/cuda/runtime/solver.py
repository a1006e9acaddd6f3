"""cuSOLVER on tensors: handles, types and workspace.

Each thread has one handle per device. Handles are never freed: cuSOLVER takes milliseconds to make one.
cuSOLVER is column-major: it reads a row-major matrix as its transpose.
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
LOWER = 0  # CUBLAS_FILL_MODE_LOWER, of the matrix as cuSOLVER reads it


class _ThreadHandles(threading.local):
    """(handle, parameters) of the current thread by device, and sizes of workspaces by call."""

    def __init__(self) -> None:
        self.by_device: dict[int, tuple[int, int]] = {}
        self.sizes: dict[tuple[int | str, ...], tuple[int, int]] = {}


# A thread-local, because a handle must not be used by two threads at a time.
_of_thread = _ThreadHandles()


def get_handle(device: int) -> int:
    """Return the calling thread's handle for a device, the current one, set to torch's current stream."""
    found, _ = _get_handles(device)
    get_routine("set_stream")(found, _stream.get_current_stream(device))
    return found


def get_parameters(device: int) -> int:
    """The choices of algorithm that routines named X... take beside a handle: all at their defaults."""
    return _get_handles(device)[1]


@functools.cache
def get_routine(name: str) -> Any:
    """Return a function of ``nvmath.bindings.cusolverDn``; it raises when cuSOLVER refuses its arguments."""
    from nvmath.bindings import cusolverDn

    return getattr(cusolverDn, name)


def get_workspace_size(routine: str, key: tuple[int, ...], *arguments: int) -> tuple[int, int]:
    """Bytes on the device and on the host that a query, named ``routine``, returns for these arguments.

    The query runs once for each ``key``, which has everything that its result depends on: it takes as long as
    a launch.
    """
    known = _of_thread.sizes.get((routine, *key))
    if known is None:
        on_device, on_host = get_routine(routine)(*arguments)
        known = _of_thread.sizes[(routine, *key)] = int(on_device), int(on_host)
    return known


def allocate_workspace(device_bytes: int, host_bytes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Memory on the device of ``like`` and on the host. The caller keeps both until the routine returns."""
    return (
        torch.empty(max(device_bytes, 1), dtype=torch.uint8, device=like.device),
        torch.empty(max(host_bytes, 1), dtype=torch.uint8, device="cpu"),
    )


def _get_handles(device: int) -> tuple[int, int]:
    """(handle, parameters) of this thread for a device, the current one; made if there are none."""
    if device not in _of_thread.by_device:
        _of_thread.by_device[device] = get_routine("create")(), get_routine("create_params")()
    return _of_thread.by_device[device]
