"""Launching kernels on torch's current stream, through the compiled core.

Kernels take pointers, 64-bit integers and doubles only (``kernels/block.cuh``), to which the core converts
Python ints and floats: no types are looked up at launch.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import compiler as _compile
from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.native import core

_TYPES = {torch.float32: "float", torch.float64: "double"}


def launch(
    stem: str,
    name: str,
    like: Tensor,
    grid: tuple[int, ...],
    block: int,
    shared: int,
    *arguments: int | float,
) -> None:
    """Launch ``name`` of ``kernels/<stem>.cu``.

    ``{T}`` in the name stands for the element type of ``like``. The kernel runs on the current device, which
    must be that of ``like``, and on its current stream. ``shared`` is in bytes. Empty grids are not launched.
    """
    if 0 in grid:
        return
    device = like.get_device()
    kernel = load_kernel(stem, name, like)
    status = core.device_launch(kernel, grid, block, shared, _stream.get_current_stream(device), arguments)
    if status:
        raise RuntimeError(
            f"lapgrad: the driver refused to launch {name} of {stem} with grid {grid}, {block} threads and "
            f"{shared} bytes of shared memory: CUresult {status}"
        )


def load_kernel(stem: str, name: str, like: Tensor) -> int:
    """Return the driver's handle of a kernel for the device of ``like``; arguments as those of ``launch``."""
    return _load_kernel(stem, name, like.dtype, like.get_device())


@functools.cache
def _load_kernel(stem: str, name: str, dtype: torch.dtype, device: int) -> int:
    """Return the driver's handle of a kernel, which stays loaded."""
    _libraries.bind_driver()
    loaded = _compile.load_kernel(
        stem, name.replace("{T}", _TYPES[dtype]), device, _stream.get_architecture(device)
    )
    return int(loaded.handle)
