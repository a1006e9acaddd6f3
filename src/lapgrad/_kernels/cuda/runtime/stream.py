"""Torch's current stream and device, as the libraries below want them: by number, and without delay."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private
from lapgrad._torch.precision import full_products, products_are_rounded

_bound = threading.local()

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def current_stream(device: int) -> int:
    """The address of torch's current stream on a device."""
    return _torch_private.cuda_stream(device)


def current_device() -> int:
    """The number of torch's current device."""
    return _torch_private.cuda_device()


def on_its_device(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Makes the device of the first operand the current one, whose libraries and stream the kernel uses.

    cuBLAS is used by torch's handle, which rounds float32 numbers if torch was told to: not here.
    """

    @functools.wraps(kernel)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        first = args[0]
        assert isinstance(first, Tensor)
        device = first.get_device()
        bind_context(device)
        rounds = products_are_rounded(first)
        if device == current_device() and not rounds:
            return kernel(*args, **kwargs)
        with torch.cuda.device(device), full_products("cuda") if rounds else contextlib.nullcontext():
            return kernel(*args, **kwargs)

    return wrapped


def bind_context(device: int) -> None:
    """Makes the device's context current in a thread whose first CUDA call is lapgrad's own.

    Autograd runs backward passes in threads of its own, and torch makes a context current there only with its
    first call into the CUDA runtime: a launch through the driver may come before.
    """
    known: set[int] | None = getattr(_bound, "devices", None)
    if known is None:
        known = _bound.devices = set()
    # Another device than the current one becomes it by torch's own call, and only for a while.
    if device not in known and device == current_device():
        from cuda.core import Device

        Device(device).set_current()
        known.add(device)


def being_captured() -> bool:
    """Whether a CUDA graph records what is launched now: then nothing may be read back to the host."""
    return torch.cuda.is_current_stream_capturing()


@functools.cache
def architecture(device: int) -> str:
    """What NVRTC is to compile for: ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.cache
def block_memory(device: int) -> int:
    """Bytes of a multiprocessor's memory that one block may have."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0) or properties.shared_memory_per_block)


#: Times that float32 may be faster than float64: 2 on devices for computing, 32 and 64 on those for pictures.
_LARGEST_RATIO = 4


@functools.cache
def multiplies_float64_fast(device: int) -> bool:
    """Whether algorithms are worth while that trade more operations, in float64, for better ones."""
    from cuda.core import Device

    return int(Device(device).properties.single_to_double_precision_perf_ratio) <= _LARGEST_RATIO
