"""Functions of NVIDIA's libraries for the compiled core, which calls them by their addresses."""

from __future__ import annotations

import ctypes
import functools

from lapgrad._kernels.native import core

_CUBLAS = ("gemm", "gemmStridedBatched", "trmm", "trsm", "syrk")
_DRIVER = (
    "cuLaunchKernel",
    "cuMemsetD8Async",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
)


@functools.cache
def bind_driver() -> None:
    """Pass the addresses of functions of the CUDA driver to the core."""
    driver = ctypes.CDLL("libcuda.so.1")
    for name in _DRIVER:
        core.device_bind(name, _get_address(driver, name))


@functools.cache
def bind_cublas() -> None:
    """Pass the addresses of cuBLAS routines to the core, from the library that torch has loaded."""
    cublas = ctypes.CDLL(_find_loaded_library("libcublas.so"))
    for letter in "SD":
        for name in _CUBLAS:
            symbol = f"cublas{letter}{name}" + ("" if name.startswith("gemmS") else "_v2")
            core.device_bind(letter + name, _get_address(cublas, symbol))


def _find_loaded_library(stem: str) -> str:
    """Return the path of a library that this process has loaded, by the start of its name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.rpartition("/")[2].startswith(stem):
                return path
    raise RuntimeError(f"lapgrad: torch has not loaded {stem}; is this a build of torch for CUDA?")


def _get_address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
