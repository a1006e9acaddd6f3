"""Kernels of ``_kernels/cuda/kernels`` compiled for the CPU: see ``emulation/cuda_on_cpu.h``.

Their accesses to memory are checked (``emulation/watched_memory.h``); a fault raises an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime.compiler import SOURCES

EMULATION = Path(__file__).parent / "emulation"
COMPILER = shutil.which("g++")

_HEADER = "cuda_on_cpu.h"
#: The compiler inserts a call before each access to memory. The emulation defines the called functions, so
#: the sanitizer's library is not linked.
_WATCHED = ("-fsanitize=thread",)

_TYPES = {torch.float32: "float", torch.float64: "double"}


def launch(
    stem: str,
    name: str,
    like: Tensor,
    grid: Sequence[int],
    block: int,
    shared: int,
    *arguments: int | float,
    reverse_order: bool = False,
    unwritten: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Run a kernel on CPU tensors; takes the arguments of ``cuda.runtime.launch.launch``.

    ``unwritten`` is a contiguous tensor, and a mask of its elements that must not be read before they are
    written. Raises ``FaultyKernelError``.
    """
    if 0 in grid:
        return
    sizes = [*grid, 1, 1][:3]
    geometry = (*sizes, block, 1, 1, shared, int(reverse_order))
    values: list[Any] = [
        ctypes.c_double(value) if isinstance(value, float) else ctypes.c_longlong(value)
        for value in arguments
    ]
    addresses = (ctypes.c_void_p * max(len(values), 1))(*[ctypes.addressof(value) for value in values])
    fault = run(stem, name_instance(name, like.dtype), geometry, addresses, unwritten)
    if fault is not None:
        raise FaultyKernelError(f"{name} of {stem}: {fault}")


class FaultyKernelError(AssertionError):
    """A kernel made a faulty access to memory: a race, or a read of memory that was never written."""


class _Unwritten(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("element", ctypes.c_size_t),
        ("marks", ctypes.c_void_p),
    )


def run(
    stem: str,
    expression: str,
    geometry: Sequence[int],
    addresses: Any,
    unwritten: tuple[Tensor, Tensor] | None = None,
) -> str | None:
    """Run a kernel whose arguments are stored at ``addresses``; return its first faulty access, or None."""
    marked = None
    if unwritten is not None:
        data, marks = unwritten
        assert data.is_contiguous()
        marks = marks.contiguous().clone()
        marked = _Unwritten(data.data_ptr(), data.numel(), data.element_size(), marks.data_ptr())
    given = None if marked is None else ctypes.byref(marked)
    fault: bytes | None = _build_library(stem, expression).run(
        (ctypes.c_int * 8)(*geometry), addresses, given
    )
    return None if fault is None else fault.decode()


def name_instance(name: str, dtype: torch.dtype) -> str:
    """Return the name of a kernel, with the C++ type of ``dtype`` in place of {T}."""
    return name.replace("{T}", _TYPES[dtype])


@functools.cache
def _build_library(stem: str, expression: str) -> ctypes.CDLL:
    source = (
        f'#include "{SOURCES / f"{stem}.cu"}"\n'
        'extern "C" const char* run(const int* geometry, void** arguments, const emulation::Unwritten* marks)'
        f"{{ return emulation::run({expression}, geometry, arguments, marks); }}\n"
    )
    digest = _compute_digest(source.encode(), *_read_contents(EMULATION), *_read_contents(SOURCES))
    library = _get_build_folder() / f"{Path(stem).name}-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_get_build_folder()) as scratch:
            driver, built = Path(scratch) / "driver.cpp", Path(scratch) / library.name
            driver.write_text(source)
            translated = str(driver.with_suffix(".o"))
            _compile(
                *_WATCHED,
                "-c",
                "-include",
                str(_precompile_header()),
                f"-I{SOURCES}",
                "-o",
                translated,
                str(driver),
            )
            _compile("-shared", "-o", str(built), translated)
            built.replace(library)
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype = ctypes.c_char_p
    return loaded


@functools.cache
def _precompile_header() -> Path:
    """Return a copy of the emulation's header, next to its precompiled form, which halves compile times."""
    place = _get_build_folder() / f"header-{_compute_digest(*_read_contents(EMULATION))}"
    header = place / _HEADER
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=_get_build_folder()) as scratch:
            complete = shutil.copytree(EMULATION, Path(scratch) / "complete")
            copy = str(complete / _HEADER)
            _compile(*_WATCHED, "-x", "c++-header", "-o", f"{copy}.gch", copy)
            with contextlib.suppress(OSError):  # another process was first
                complete.rename(place)
    return header


def _get_build_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"lapgrad-emulation-{np.__version__}"
    folder.mkdir(exist_ok=True)
    return folder


def _read_contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]


def _compute_digest(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:20]


def _compile(*arguments: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-w", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
