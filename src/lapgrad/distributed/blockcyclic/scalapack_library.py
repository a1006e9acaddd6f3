"""Finds and loads ScaLAPACK with its MPI: the packages ``mkl`` and ``mpich``, or a library of the system.

torch has its own copy of MKL. ScaLAPACK's must be loaded after it: symbols that are already there are not
looked up again, while in the other order thousands of torch's own calls would end in the other library. The
two copies share only their threads: MKL's GNU layer runs on the OpenMP library of torch, and follows
``torch.set_num_threads``.

``LAPGRAD_SCALAPACK=/path/libscalapack-openmpi.so`` names a ScaLAPACK that brings its own BLAS and MPI, as
those of Linux distributions and clusters do. ``LAPGRAD_MPI=/path/libmpi.so.12`` replaces the MPI of
``mpich`` by another one with the same binary interface (MPICH, Intel MPI, Cray MPI).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from lapgrad import _exceptions

_INSTALL = "pip install 'lapgrad[scalapack]'"
#: MKL in layers: computation, threads (those of GNU's OpenMP) and 32-bit integers; then messages and
#: ScaLAPACK.
_LAYERS = (
    "libmkl_core.so",
    "libmkl_gnu_thread.so",
    "libmkl_intel_lp64.so",
    "libmkl_blacs_intelmpi_lp64.so",
    "libmkl_scalapack_lp64.so",
)


class Libraries(NamedTuple):
    """The libraries that have the routines of BLACS (communication) and of ScaLAPACK, and where they are."""

    blacs: ctypes.CDLL
    scalapack: ctypes.CDLL
    path: str


def load_libraries() -> Libraries:
    """Load ScaLAPACK.

    Raises:
        MissingDependencyError: A package or a file is missing; the message says what to install.
    """
    named = os.environ.get("LAPGRAD_SCALAPACK")
    return _load_named(named) if named else _load_packages()


def is_installed() -> bool:
    """Return whether there is a ScaLAPACK to load, without loading it."""
    if os.environ.get("LAPGRAD_SCALAPACK"):
        return True
    with contextlib.suppress(_exceptions.MissingDependencyError):
        _find_file("mkl", "libmkl_scalapack_lp64.so")
        return os.environ.get("LAPGRAD_MPI") is not None or bool(_find_file("mpich", "libmpi.so"))
    return False


def _load_named(path: str) -> Libraries:
    library = _load(path, "LAPGRAD_SCALAPACK")
    if not hasattr(library, "Cblacs_pinfo"):
        raise _exceptions.MissingDependencyError(
            f"LAPGRAD_SCALAPACK={path} has no BLACS (Cblacs_pinfo): name a ScaLAPACK that includes it, "
            f"such as libscalapack-openmpi.so of Debian."
        )
    return Libraries(library, library, path)


def _load_packages() -> Libraries:
    mpi = os.environ.get("LAPGRAD_MPI")
    files = [_find_file("mkl", name) for name in _LAYERS]
    _load(mpi if mpi else str(_find_file("mpich", "libmpi.so")), "LAPGRAD_MPI" if mpi else "mpich")
    _share_openmp_of_torch()
    *_, blacs, scalapack = [_load(str(file), "mkl") for file in files]
    return Libraries(blacs, scalapack, str(files[-1]))


def _share_openmp_of_torch() -> None:
    """Make the symbols of the OpenMP library that torch has loaded visible to MKL."""
    folders = (Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs")
    for file in (file for folder in folders for file in sorted(folder.glob("libgomp*.so*"))):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL | os.RTLD_NOW)
            return
    with contextlib.suppress(OSError):
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_GLOBAL | os.RTLD_NOW)


def _load(path: str, origin: str) -> ctypes.CDLL:
    try:
        # Lazy: the layers of MKL call each other in circles.
        return ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
    except OSError as error:
        raise _exceptions.MissingDependencyError(f"{origin}: {path} cannot be loaded: {error}.") from error


def _find_file(package: str, name: str) -> Path:
    """Return a shared library of a package; versions may follow its name."""
    found = sorted(path for path in _list_files(package) if path.name.startswith(name) and path.exists())
    if not found:
        raise _exceptions.MissingDependencyError(
            f"A matrix over several processes needs ScaLAPACK from the packages mkl and mpich, and "
            f"{package} has no {name} here: {_INSTALL}"
        )
    return found[-1]


def _list_files(package: str) -> Iterator[Path]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.distribution(package).files or ():
            yield Path(str(file.locate())).resolve(strict=False)
    # Only packages that pip has installed list their files.
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        yield from Path(prefix, "lib").glob("lib*.so*")
