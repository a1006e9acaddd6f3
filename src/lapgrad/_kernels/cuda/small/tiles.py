"""Code that the gradients of syevd and gesvd share for matrices too large for one block of threads.

See ``kernels/spectral_tiles.cuh`` and csrc/gpu/device_spectral.h, which launches products and kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lapgrad._formulas.gaps import POLICY_NUMBERS
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import compiler as _compile
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.runtime.items import get_address
from lapgrad._kernels.native import core

#: Stands for an operand that is missing.
NOTHING: _device.Blocks = (0, 0, 0, 0, 0, 0, 0)

#: Rows of a cotangent that a warp measures where there are many: ``kWarpRows`` in the kernels.
WARP_ROWS = 8

_TYPES = {torch.float32: "float", torch.float64: "double"}


def pack_rule(
    values: Tensor, slope: Tensor | None, degeneracy: str, tol: float, status: _items.DeferredStatus | None
) -> tuple[tuple[Any, ...], Any]:
    """Arguments of the core: (values, slopes, policy, tolerance, cell, rows of a warp); a mailbox, or 0."""
    share = WARP_ROWS if values.numel() >= _thresholds.SPECTRAL_VJP_MANY_ROWS else 1
    policy = POLICY_NUMBERS[degeneracy]
    cell, mailbox = (None, 0) if status is None else (status.cell, status.mailbox)
    return (values.data_ptr(), get_address(slope), policy, float(tol), get_address(cell), share), mailbox


def get_queue(stem: str, names: tuple[str, ...], like: Tensor) -> tuple[Any, int, int]:
    """(kernels of ``kernels/<stem>.cu``, cuBLAS's handle, stream) for the device of ``like``."""
    device = like.get_device()
    kernels = _load_kernels(stem, names, device, like.dtype)
    return kernels, torch.cuda.current_blas_handle(), _stream.get_current_stream(device)


@functools.cache
def _load_kernels(stem: str, names: tuple[str, ...], device: int, dtype: torch.dtype) -> Any:
    """Return the core's object for the kernels of one file, for one device and element type."""
    _libraries.bind_cublas()
    _libraries.bind_driver()
    architecture = _stream.get_architecture(device)
    loaded = [
        _compile.load_kernel(stem, name.replace("{T}", _TYPES[dtype]), device, architecture) for name in names
    ]
    return core.Device(dtype.itemsize, [int(kernel.handle) for kernel in loaded])


def describe_operand(A: Tensor | None) -> tuple[_device.Blocks, Tensor | None]:
    """A, (*batch, m, n), as the core takes it, and the tensor to keep alive: A or a copy for cuBLAS."""
    if A is None:
        return NOTHING, None
    if not A.is_contiguous():
        readable = _device.make_readable(_items.flatten_batch(A))
        return _device.describe_blocks(readable), readable
    m, n = A.shape[-2:]
    return (A.data_ptr(), A.numel() // (m * n), m * n, m, n, n, 1), A


def transpose_blocks(blocks: _device.Blocks) -> _device.Blocks:
    """Return the transposed matrices in the same memory."""
    address, items, step, m, n, row, col = blocks
    return address, items, step, n, m, col, row
