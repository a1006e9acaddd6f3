"""Kernels keep their precision: under autocast, and where products of float32 may be rounded to less.

``torch.set_float32_matmul_precision("high")``, which is meant for networks, lets a GPU multiply float32
numbers with 10 bits of their mantissa (TF32), also in cuBLAS calls of others that share torch's handle. A
Cholesky factor made so is right to three digits, and a kernel matrix need not even be positive definite.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_FULL = ("ieee", "none")
"""Settings of torch that round no product. "none": nothing was set."""

#: Where torch keeps the setting, which is one for all threads.
_SETTINGS: dict[str, Any] = {
    "cuda": torch.backends.cuda.matmul,
    "cpu": getattr(torch.backends.mkldnn, "matmul"),  # noqa: B009  (of a module made by hand)
}

_lock = threading.Lock()
_inside = dict.fromkeys(_SETTINGS, 0)
_before: dict[str, str] = {}


def in_full_precision(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Products inside of a kernel, whose first argument is a tensor, are those of its dtype."""

    @functools.wraps(kernel)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        output = args[0]
        assert isinstance(output, Tensor)
        device = "cpu" if output.is_cpu else "cuda" if output.is_cuda else output.device.type
        if not torch.is_autocast_enabled(device) and not products_are_rounded(output):
            return kernel(*args, **kwargs)
        with full_precision(output):
            return kernel(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def full_precision(like: Tensor) -> Iterator[None]:
    """Products of tensors as ``like`` are those of its dtype: also in formulas that torch differentiates."""
    device = like.device.type
    with (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else contextlib.nullcontext(),
        full_products(device) if products_are_rounded(like) else contextlib.nullcontext(),
    ):
        yield


def products_are_rounded(like: Tensor) -> bool:
    """Whether torch multiplies float32 tensors as ``like`` with less than their precision.

    Also while another thread has it switched off, which may end at any time.
    """
    if like.dtype is not torch.float32:
        return False
    if like.is_cuda:
        return _inside["cuda"] > 0 or _torch_private.float32_precision("cuda") not in _FULL
    return like.is_cpu and (_inside["cpu"] > 0 or _torch_private.float32_precision("mkldnn") not in _FULL)


@contextlib.contextmanager
def full_products(device: str) -> Iterator[None]:
    """Switches the rounding of products off: the first thread that comes in, until the last one has gone."""
    setting = _SETTINGS[device]
    with _lock:
        if not _inside[device]:
            _before[device] = setting.fp32_precision
            setting.fp32_precision = "ieee"
        _inside[device] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[device] -= 1
            if not _inside[device]:
                setting.fp32_precision = _before[device]
