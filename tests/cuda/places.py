"""Where the kernels of a test run: emulated on the CPU, and on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulated
import pytest
import torch

from lapgrad._kernels import cuda as _cuda

_DEVICE = torch.cuda.is_available() and _cuda.is_available()


def make_places(on_cpu: Callable[..., Any], on_device: Callable[..., Any], kind: str = "") -> list[Any]:
    """Return the parameters of a fixture: the emulated kernel, and the one on a GPU (skipped without one).

    ``kind`` begins the ids, where one test has several kernels.
    """
    return [
        pytest.param(
            on_cpu,
            id=kind + "emulated",
            marks=(pytest.mark.cpu, pytest.mark.skipif(not emulated.COMPILER, reason="no g++")),
        ),
        pytest.param(
            on_device, id=kind + "device", marks=pytest.mark.skipif(not _DEVICE, reason="no CUDA device")
        ),
    ]
