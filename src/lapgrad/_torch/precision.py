"""Keeps kernels at full precision under autocast and where torch may round products of float32.

``torch.set_float32_matmul_precision("high")``, which is meant for networks, lets a GPU multiply float32
numbers with 10 bits of their mantissa (TF32), also in cuBLAS calls of others that share torch's handle. With
such products a Cholesky factor is right to three digits, and a kernel matrix may not be positive definite.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from lapgrad._torch import private as _torch_private

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Settings of torch that round no product. "none": nothing was set.
_FULL = ("ieee", "none")


class _SharedSetting:
    """torch's setting for products of float32 on one kind of device. All threads share it.

    The first thread that needs full precision switches rounding off, and the last one restores the setting.
    This is state of the process because torch's setting is. ``users`` counts the threads that need it.

    Args:
        setting: The object whose attribute ``fp32_precision`` is the setting.
        backend: Its name in ``private.get_float32_precision``.
    """

    def __init__(self, setting: Any, backend: str) -> None:
        self._setting, self._backend = setting, backend
        self._lock, self.users, self._before = threading.Lock(), 0, ""

    def rounds(self) -> bool:
        """Whether torch rounds products, now or as soon as the threads that have switched it off are done."""
        return self.users > 0 or _torch_private.get_float32_precision(self._backend) not in _FULL

    @contextlib.contextmanager
    def switch_off(self) -> Iterator[None]:
        """While active, torch does not round products of float32 on this kind of device."""
        with self._lock:
            if not self.users:
                self._before = self._setting.fp32_precision
                self._setting.fp32_precision = "ieee"
            self.users += 1
        try:
            yield
        finally:
            with self._lock:
                self.users -= 1
                if not self.users:
                    self._setting.fp32_precision = self._before


_CUDA = _SharedSetting(torch.backends.cuda.matmul, "cuda")
_CPU = _SharedSetting(getattr(torch.backends.mkldnn, "matmul"), "mkldnn")  # noqa: B009  (made by hand)


def in_full_precision(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a kernel: its products have the precision of the dtype of its first argument, a tensor."""

    @functools.wraps(kernel)
    def run_in_full_precision(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        output = args[0]
        assert isinstance(output, Tensor)
        device = "cpu" if output.is_cpu else "cuda" if output.is_cuda else output.device.type
        if not torch.is_autocast_enabled(device) and not rounds_products(output):
            return kernel(*args, **kwargs)
        with use_full_precision(output):
            return kernel(*args, **kwargs)

    return run_in_full_precision


@contextlib.contextmanager
def use_full_precision(like: Tensor) -> Iterator[None]:
    """Products inside, of tensors such as ``like``, have the precision of its dtype.

    This also holds for formulas that torch differentiates.
    """
    device = like.device.type
    with (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else contextlib.nullcontext(),
        use_full_products(device) if rounds_products(like) else contextlib.nullcontext(),
    ):
        yield


def rounds_products(like: Tensor) -> bool:
    """Whether torch multiplies float32 tensors such as ``like`` with less than their precision.

    True also while another thread has that switched off, which may end at any time.
    """
    if like.dtype is not torch.float32:
        return False
    if like.is_cuda:
        return _CUDA.rounds()
    return like.is_cpu and _CPU.rounds()


def keeps_products(like: Tensor) -> bool:
    """Whether products of tensors such as ``like``, on a CPU or a GPU, have the precision of their dtype."""
    return not torch.is_autocast_enabled("cpu" if like.is_cpu else "cuda") and not rounds_products(like)


def name_precision_of_cuda() -> tuple[Any, ...] | None:
    """What the core calls in place of ``keeps_products`` (csrc/bind/device_shortcuts.cpp); None: nothing."""
    getter = _torch_private.find_precision_getter()
    return None if getter is None else (torch.is_autocast_enabled, "cuda", getter, ("cuda", "matmul"), _CUDA)


def use_full_products(device: str) -> AbstractContextManager[None]:
    """Return a context in which torch does not round products on "cuda" or "cpu", in any thread."""
    return (_CUDA if device == "cuda" else _CPU).switch_off()
