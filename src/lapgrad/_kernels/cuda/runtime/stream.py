"""torch's current stream and device by number, for calls of CUDA libraries, and properties of a device."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private
from lapgrad._torch.precision import rounds_products, use_full_products


class _BoundDevices(threading.local):
    """The devices whose context was made current in this thread; a context is current per thread."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()


# Not passed as an argument, because PyTorch calls kernels, also in threads of autograd's own.
_bound = _BoundDevices()

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def get_current_stream(device: int) -> int:
    """Return the address of torch's current stream on a device."""
    return _torch_private.get_cuda_stream(device)


def get_current_device() -> int:
    """Return the number of torch's current device."""
    return _torch_private.get_cuda_device()


def on_its_device(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a kernel: it runs with the device of its first operand as the current one.

    cuBLAS is called with torch's handle, which rounds float32 numbers if torch is set to. Rounding is
    switched off during the call.
    """

    @functools.wraps(kernel)
    def run_on_device(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        first = args[0]
        assert isinstance(first, Tensor)
        device = first.get_device()
        rounds = rounds_products(first)
        if device in _bound.numbers and device == get_current_device() and not rounds:
            return kernel(*args, **kwargs)
        bind_context(device)
        with torch.cuda.device(device), use_full_products("cuda") if rounds else contextlib.nullcontext():
            return kernel(*args, **kwargs)

    return run_on_device


def bind_context(device: int) -> None:
    """Make the device's context current in a thread whose first CUDA call is lapgrad's own.

    Autograd runs backward passes in threads of its own, and torch makes a context current there only with its
    first call into the CUDA runtime: a launch through the driver may come before.
    """
    # torch makes any other device current by itself, and only for the time of a call.
    if device not in _bound.numbers and device == get_current_device():
        from cuda.core import Device

        Device(device).set_current()
        _bound.numbers.add(device)


def is_capturing() -> bool:
    """Whether a CUDA graph records what is launched now: then nothing may be read back to the host."""
    return torch.cuda.is_current_stream_capturing()


@functools.cache
def get_architecture(device: int) -> str:
    """Return the architecture that NVRTC compiles for, such as ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.cache
def get_block_memory(device: int) -> int:
    """Bytes of shared memory that one block may have."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0) or properties.shared_memory_per_block)


@functools.cache
def get_memory(device: int) -> int:
    """Bytes of memory of a device."""
    return int(torch.cuda.get_device_properties(device).total_memory)


#: How many times faster float32 may be than float64: it is 2 on data centre GPUs, 32 or 64 on consumer ones.
_LARGEST_RATIO = 4


@functools.cache
def has_fast_float64(device: int) -> bool:
    """Whether float64 is fast enough for algorithms that trade more operations for matrix products."""
    from cuda.core import Device

    return int(Device(device).properties.single_to_double_precision_perf_ratio) <= _LARGEST_RATIO
