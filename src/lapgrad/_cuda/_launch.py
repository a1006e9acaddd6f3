"""Launching kernels on torch's current stream.

Kernels take pointers, 64-bit integers and doubles only (``kernels/block.cuh``), which is what ``cuda.core``
makes of a Python int or float: no types are looked up at launch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lapgrad._cuda import _compile, _stream

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
    """Launches ``name`` of ``kernels/<stem>.cu``.

    ``{T}`` in the name stands for the element type of ``like``, whose device, the current
    one, and stream are taken. ``shared`` is in bytes. A grid without a block is nothing to do.
    """
    if 0 in grid:
        return
    from cuda.core import launch as start

    device = like.get_device()
    kernel = _kernel(stem, name, like.dtype, device)
    start(
        _stream_object(device, _stream.current_stream(device)),
        _geometry(grid, block, shared),
        kernel,
        *arguments,
    )


@functools.cache
def _kernel(stem: str, name: str, dtype: torch.dtype, device: int) -> Any:
    return _compile.kernel(stem, name.replace("{T}", _TYPES[dtype]), device, _stream.architecture(device))


@functools.lru_cache(maxsize=4096)
def _geometry(grid: tuple[int, ...], block: int, shared: int) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block, shmem_size=shared)


@functools.lru_cache(maxsize=256)
def _stream_object(device: int, address: int) -> Any:
    from cuda.core import Device, Stream

    Device(device).set_current()
    return Stream.from_handle(address)
