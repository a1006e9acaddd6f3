"""Runs the GPU algorithms of ``lapgrad._kernels.cuda`` and csrc/gpu on CPU tensors, where there is no GPU.

cuBLAS is replaced by its definition in NumPy, and kernels are emulated. So the tests cover what lapgrad adds:
the order of the blocks, the flags, and the addresses and strides that are passed on.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import emulated
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lapgrad._kernels.cpu import core, is_available
from lapgrad._kernels.cuda.large import cholesky as _cholesky
from lapgrad._kernels.cuda.large import symmetric as _symmetric
from lapgrad._kernels.cuda.runtime import device as _device
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import launch as _launch
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import tiles as _tiles

_TYPES: dict[str, Any] = {"S": ctypes.c_float, "D": ctypes.c_double}
_SUCCESS, _FAILURE = 0, 1


def view_column_major(kind: Any, address: int, rows: int, cols: int, leading: int) -> NDArray[Any]:
    """Return the column-major matrix at an address, as cuBLAS reads it."""
    assert leading >= max(rows, 1)
    extent = (cols - 1) * leading + rows
    memory = np.ctypeslib.as_array((kind * extent).from_address(address))
    strides = (memory.itemsize, leading * memory.itemsize)
    return np.lib.stride_tricks.as_strided(memory, (rows, cols), strides)


def read_number(kind: Any, address: int) -> float:
    value: float = kind.from_address(address).value
    return value


def gemm(kind: Any, _: int, ta: int, tb: int, m: int, n: int, k: int, *rest: int) -> int:
    alpha, a, lda, b, ldb, beta, c, ldc = rest
    A = view_column_major(kind, a, *((k, m) if ta else (m, k)), lda)
    B = view_column_major(kind, b, *((n, k) if tb else (k, n)), ldb)
    C = view_column_major(kind, c, m, n, ldc)
    kept = read_number(kind, beta)
    old = kept * C if kept else 0.0
    C[...] = read_number(kind, alpha) * ((A.T if ta else A) @ (B.T if tb else B)) + old
    return _SUCCESS


def gemm_strided_batched(kind: Any, handle: int, ta: int, tb: int, m: int, n: int, k: int, *rest: int) -> int:
    alpha, a, lda, a_step, b, ldb, b_step, beta, c, ldc, c_step, count = rest
    size = ctypes.sizeof(kind)
    for item in range(count):
        a_, b_, c_ = (start + item * step * size for start, step in ((a, a_step), (b, b_step), (c, c_step)))
        gemm(kind, handle, ta, tb, m, n, k, alpha, a_, lda, b_, ldb, beta, c_, ldc)
    return _SUCCESS


def view_triangle(
    kind: Any, upper: int, transposed: int, order: int, address: int, leading: int
) -> NDArray[Any]:
    L = view_column_major(kind, address, order, order, leading)
    L = np.triu(L) if upper else np.tril(L)
    return L.T if transposed else L


def trmm(kind: Any, _: int, right: int, upper: int, trans: int, unit: int, m: int, n: int, *rest: int) -> int:
    alpha, a, lda, b, ldb, c, ldc = rest
    L = view_triangle(kind, upper, trans, n if right else m, a, lda)
    B = view_column_major(kind, b, m, n, ldb)
    view_column_major(kind, c, m, n, ldc)[...] = read_number(kind, alpha) * (B @ L if right else L @ B)
    return _SUCCESS


def trsm(kind: Any, _: int, right: int, upper: int, trans: int, unit: int, m: int, n: int, *rest: int) -> int:
    alpha, a, lda, b, ldb = rest
    L = view_triangle(kind, upper, trans, n if right else m, a, lda)
    B = view_column_major(kind, b, m, n, ldb)
    B[...] = read_number(kind, alpha) * (np.linalg.solve(L.T, B.T).T if right else np.linalg.solve(L, B))
    return _SUCCESS


def syrk(kind: Any, _: int, upper: int, trans: int, n: int, k: int, *rest: int) -> int:
    alpha, a, lda, beta, c, ldc = rest
    A = view_column_major(kind, a, *((k, n) if trans else (n, k)), lda)
    C = view_column_major(kind, c, n, n, ldc)
    kept = read_number(kind, beta)
    product = read_number(kind, alpha) * (A.T @ A if trans else A @ A.T) + (kept * C if kept else 0.0)
    named = np.triu(np.ones((n, n), bool)) if upper else np.tril(np.ones((n, n), bool))
    C[named] = product[named]
    return _SUCCESS


def load_kernel(stem: str, name: str, like: Tensor) -> int:
    """Return the number of a kernel, as ``_launch.load_kernel`` returns its handle."""
    return _number_kernel(stem, name, like.dtype)


def launch_kernel(function: int, *rest: int) -> int:
    """Run a kernel emulated; ``function`` is the number that ``_number_kernel`` gave to it."""
    *geometry, shared, _, parameters, _ = rest
    stem, name = _numbered[function - 1]
    fault = emulated.run(stem, name, (*geometry, shared, 0), ctypes.c_void_p(parameters))
    if fault is None:
        return _SUCCESS
    print(f"{name}: {fault}")  # the compiled core would lose an exception
    return _FAILURE


def fill_bytes(address: int, value: int, count: int, stream: int) -> int:
    ctypes.memset(address, value, count)
    return _SUCCESS


_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_SIGNATURES: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "gemm": (gemm, (_P, *[_I] * 5, _P, _P, _I, _P, _I, _P, _P, _I)),
    "gemmStridedBatched": (
        gemm_strided_batched,
        (_P, *[_I] * 5, _P, _P, _I, _L, _P, _I, _L, _P, _P, _I, _L, _I),
    ),
    "trmm": (trmm, (_P, *[_I] * 6, _P, _P, _I, _P, _I, _P, _I)),
    "trsm": (trsm, (_P, *[_I] * 6, _P, _P, _I, _P, _I)),
    "syrk": (syrk, (_P, *[_I] * 4, _P, _P, _I, _P, _P, _I)),
}


@functools.cache
def make_callbacks() -> dict[str, Any]:
    """Return the stand-ins as functions of C, by the name that the core has for each; kept alive for ever."""
    callbacks: dict[str, Any] = {
        "cuLaunchKernel": ctypes.CFUNCTYPE(_I, _P, *[ctypes.c_uint] * 7, _P, _P, _P)(launch_kernel),
        "cuMemsetD8Async": ctypes.CFUNCTYPE(_I, _P, ctypes.c_ubyte, ctypes.c_size_t, _P)(fill_bytes),
        "cuMemcpyDtoDAsync_v2": ctypes.CFUNCTYPE(_I, _P, _P, ctypes.c_size_t, _P)(copy_to_host),
        "cuMemcpyDtoHAsync_v2": ctypes.CFUNCTYPE(_I, _P, _P, ctypes.c_size_t, _P)(copy_to_host),
        "cuEventCreate": ctypes.CFUNCTYPE(_I, _P, ctypes.c_uint)(create_event),
        "cuEventRecord": ctypes.CFUNCTYPE(_I, _P, _P)(lambda event, stream: _SUCCESS),
        "cuEventSynchronize": ctypes.CFUNCTYPE(_I, _P)(lambda event: _SUCCESS),
        "cuEventDestroy_v2": ctypes.CFUNCTYPE(_I, _P)(lambda event: _SUCCESS),
    }
    for letter, kind in _TYPES.items():
        for name, (function, arguments) in _SIGNATURES.items():
            # NumPy warns about infinities, and a GPU does not.
            quiet = np.errstate(all="ignore")(functools.partial(function, kind))
            callbacks[letter + name] = ctypes.CFUNCTYPE(_I, *arguments)(quiet)
    return callbacks


@contextmanager
def bind_to_core(callbacks: Mapping[str, Any]) -> Iterator[None]:
    """While active, the core calls these functions in place of those of the same names, real ones or none."""
    previous = {
        name: core.device_bind(name, ctypes.cast(callback, _P).value) for name, callback in callbacks.items()
    }
    try:
        yield
    finally:
        for name, address in previous.items():
            core.device_bind(name, address)


def read_bound_addresses() -> dict[str, int]:
    """Return the addresses that the core calls, by the names of their functions; 0 where none is bound."""
    addresses = {name: core.device_bind(name, 0) for name in make_callbacks()}
    for name, address in addresses.items():
        core.device_bind(name, address)
    return addresses


#: (file, instance) of the kernels that have a number in place of a driver's handle.
_numbered: list[tuple[str, str]] = []


def _number_kernel(stem: str, name: str, dtype: torch.dtype) -> int:
    kernel = stem, emulated.name_instance(name, dtype)
    if kernel not in _numbered:
        _numbered.append(kernel)
    return _numbered.index(kernel) + 1


def make_queue(stem: str, names: Sequence[str], like: Tensor) -> tuple[Any, int, int]:
    kernels = [_number_kernel(stem, name, like.dtype) for name in names]
    return core.Device(like.element_size(), kernels), 0, 0


def make_device(like: Tensor) -> tuple[Any, int, int]:
    return make_queue("triangle", _device._KERNELS, like)


def factorise_upper(A: Tensor, code: int) -> None:
    """Replace one triangle of A by its Cholesky factor, and leave the other one, as cuSOLVER does."""
    factor, status = torch.linalg.cholesky_ex(A, upper=True)
    A.copy_(torch.where(torch.ones_like(A, dtype=torch.bool).triu(), factor, A))
    codes = (ctypes.c_int32 * status.numel()).from_address(code)
    codes[:] = status.flatten().tolist()


def decompose_symmetric(values: Tensor, rows: Tensor, status: Tensor, vectors: bool) -> None:
    """Put LAPACK behind cuSOLVER's interface: upper triangles in, rows of eigenvectors or scratch out."""
    assert rows.isfinite().all()
    found, columns = torch.linalg.eigh(rows, UPLO="U")
    values.copy_(found)
    rows.copy_(columns.mT if vectors else torch.nan)
    status.zero_()


def copy_to_host(place: int, address: int, count: int, stream: int) -> int:
    ctypes.memmove(place, address, count)
    return _SUCCESS


def create_event(place: int, flags: int) -> int:
    ctypes.c_void_p.from_address(place).value = 1
    return _SUCCESS


def make_pinned_elsewhere() -> Any:
    """Return what ``_items._create_mailbox`` does, in ordinary memory: without a GPU none can be pinned."""
    place = torch.empty((), dtype=torch.int64)
    return core.Mailbox(place, place.data_ptr())


@contextmanager
def replace_gpu() -> Iterator[None]:
    """While active, functions of ``lapgrad._kernels.cuda`` take CPU tensors."""
    patches = (
        mock.patch.object(_device, "_get_queue", make_device),
        mock.patch.object(_device, "_get_queue_of_products", make_device),
        mock.patch.object(_tiles, "get_queue", make_queue),
        mock.patch.object(_launch, "launch", emulated.launch),
        mock.patch.object(_launch, "load_kernel", load_kernel),
        mock.patch.object(_stream, "get_current_device", return_value=-1),
        mock.patch.object(_stream, "is_capturing", return_value=False),
        mock.patch.object(_stream, "has_fast_float64", return_value=True),
        mock.patch.object(_items, "_create_mailbox", make_pinned_elsewhere),
        mock.patch.object(_stream, "get_current_stream", return_value=0),
        mock.patch.object(_cholesky, "factorise_upper", factorise_upper),
        mock.patch.object(_symmetric, "decompose_batch", decompose_symmetric),
    )
    with ExitStack() as scope:
        if is_available():  # else nothing is launched through the core
            scope.enter_context(bind_to_core(make_callbacks()))
        scope.callback(_items._of_thread.unused.clear)  # their events are those of the stand-ins
        for patch in patches:
            scope.enter_context(patch)
        yield
