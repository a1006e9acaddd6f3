"""Which BLAS and LAPACK the compiled core calls, and whose threads it runs on.

The core is not linked against either: it gets function pointers at import. From BLAS it takes gemm and trsm
(its other routines are recursions on products), from LAPACK potrf and the orthogonal factorisations.
csrc/base/plan.h says where trsm and potrf are used. They come from the library that torch carries, so that
both run on one thread pool; where that library does not export them, from the ``mkl`` package, and then from
SciPy. ``LAPGRAD_BLAS=torch|mkl|scipy`` chooses.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lapgrad._quota import count_allowed_threads

BLAS = ("gemm", "trsm")
LAPACK = ("potrf", "geqrf", "orgqr", "ormqr", "syevd", "gesdd", "getrf", "getrs")
ROUTINES = tuple(letter + stem for stem in BLAS + LAPACK for letter in "sd")


@dataclass(frozen=True)
class Provider:
    """Addresses of the routines in one library.

    Attributes:
        name: ``torch``, ``mkl`` or ``scipy``.
        library: the file they were found in.
        addresses: routine name to address.
        set_threads_local: address of MKL's per-thread thread count, 0 where there is none.
        serial_in_parallel_region: whether a call inside an OpenMP region of torch's pool stays on its thread.
    """

    name: str
    library: str
    addresses: dict[str, int]
    set_threads_local: int
    serial_in_parallel_region: bool


def _get_address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def find_torch_library() -> Path:
    """Return the shared library that holds torch's CPU operators (and, on most builds, its BLAS)."""
    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def _load_shared_library(name: str, path: Path, library: ctypes.CDLL) -> Provider | None:
    addresses = {routine: _get_address(library, routine + "_") for routine in ROUTINES}
    if not all(addresses.values()):
        return None
    # The lower-case spelling is the Fortran one, which takes a pointer.
    set_threads_local = _get_address(library, "MKL_Set_Num_Threads_Local")
    return Provider(name, str(path), addresses, set_threads_local, set_threads_local != 0)


def _find_torch() -> Provider | None:
    path = find_torch_library()
    if not path.exists():
        return None
    return _load_shared_library("torch", path, ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW))


def _find_mkl() -> Provider | None:
    folders = (Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib")
    found = [path for folder in folders for path in sorted(folder.glob("libmkl_rt.so*"), reverse=True)]
    if not found:
        return None
    # MKL's GNU threading layer takes its OpenMP from the global symbols: give it torch's, not a second one.
    ctypes.CDLL(str(find_torch_library()), mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL | os.RTLD_NOW)
    library = ctypes.CDLL(str(found[0]))
    mkl_interface_lp64, mkl_threading_gnu = 0, 3
    library.MKL_Set_Interface_Layer(mkl_interface_lp64)
    library.MKL_Set_Threading_Layer(mkl_threading_gnu)
    return _load_shared_library("mkl", found[0], library)


def _find_scipy() -> Provider | None:
    try:
        from scipy.linalg import cython_blas, cython_lapack
    except ImportError:
        return None
    capsules: dict[str, Any] = {**cython_lapack.__pyx_capi__, **cython_blas.__pyx_capi__}
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    addresses = {routine: get_pointer(capsules[routine], get_name(capsules[routine])) for routine in ROUTINES}
    return Provider("scipy", str(cython_blas.__file__), addresses, 0, serial_in_parallel_region=False)


_FINDERS: dict[str, Callable[[], Provider | None]] = {
    "torch": _find_torch,
    "mkl": _find_mkl,
    "scipy": _find_scipy,
}

#: The library and the OpenMP runtime that the core calls, for ``describe``. They are those of the process,
#: because the core has one set of function pointers.
_bound: Provider | None = None
_pool: str | None = None


def find(name: str | None = None) -> Provider:
    """Return the provider of that name, or the first one that is there.

    Raises:
        ValueError: A provider was asked for that does not exist, is not installed or lacks a routine.
        ImportError: None was asked for, and there is none.
    """
    if name is not None and name not in _FINDERS:
        raise ValueError(f"LAPGRAD_BLAS={name!r} is not one of {', '.join(_FINDERS)}")
    for candidate in [name] if name else _FINDERS:
        provider = _FINDERS[candidate]()
        if provider is not None:
            return provider
    if name:
        raise ValueError(f"LAPGRAD_BLAS={name!r}: no such library with {', '.join(ROUTINES)} was found")
    raise ImportError(f"no BLAS with {', '.join(ROUTINES)} was found in torch, mkl or scipy")


def bind(core: Any) -> None:
    """Hand the BLAS routines and the thread pool to the compiled core."""
    global _bound, _pool
    provider = find(os.environ.get("LAPGRAD_BLAS") or None)
    for routine in ROUTINES:
        core.bind_routine(routine, provider.addresses[routine])
    core.bind_threads(provider.set_threads_local, provider.serial_in_parallel_region)
    _bound = provider
    # Symbols are looked up through libtorch_cpu, so that the OpenMP found is the one torch is bound to.
    _pool = core.bind_pool(str(find_torch_library())) or None
    retreats = os.environ.get("LAPGRAD_CONTENTION", "").lower() not in ("off", "0", "false")
    core.configure_contention(retreats, count_allowed_threads())


def use_threads(count: int) -> None:
    """Give parallel loops that the calling thread starts, torch's included, ``count`` threads from now on.

    ``torch.set_num_threads`` would also change the number that later threads of the program begin with.
    """
    if _pool is not None:
        ctypes.CDLL(_pool).omp_set_num_threads(count)


def describe() -> dict[str, Any]:
    """Return the provider in use, in words, for ``lapgrad info``."""
    return {
        "provider": _bound.name if _bound else None,
        "library": _bound.library if _bound else None,
        "threads": torch.get_num_threads(),
        "symbols": list(_bound.addresses) if _bound else [],
        "thread_pool": _pool or "none: loops run on one thread",
    }
