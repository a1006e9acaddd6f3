"""Kernels keep their precision under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def in_full_precision(kernel: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Autocast would turn the float32 products inside a kernel into bfloat16 ones: switch it off."""

    @functools.wraps(kernel)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        output = args[0]
        assert isinstance(output, Tensor)
        device = output.device.type
        if not torch.is_autocast_enabled(device):
            return kernel(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return kernel(*args, **kwargs)

    return wrapped
