"""Kernels of ``_cuda/kernels`` compiled for the CPU: see ``emulation/cuda_on_cpu.h``."""

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

from lapgrad._cuda._compile import SOURCES

EMULATION = Path(__file__).parent / "emulation" / "cuda_on_cpu.h"
COMPILER = shutil.which("g++")

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
) -> None:
    """The emulated twin of ``lapgrad._cuda._launch.launch``: the same arguments, CPU tensors' addresses."""
    if 0 in grid:
        return
    run = _library(stem, named(name, like.dtype)).run
    sizes = [*grid, 1, 1][:3]
    geometry = (ctypes.c_int * 8)(*sizes, block, 1, 1, shared, int(reverse_order))
    values: list[Any] = [
        ctypes.c_double(value) if isinstance(value, float) else ctypes.c_longlong(value)
        for value in arguments
    ]
    addresses = (ctypes.c_void_p * max(len(values), 1))(*[ctypes.addressof(value) for value in values])
    run(geometry, addresses)


def named(name: str, dtype: torch.dtype) -> str:
    """The kernel for a type."""
    return name.replace("{T}", _TYPES[dtype])


@functools.cache
def _library(stem: str, expression: str) -> ctypes.CDLL:
    source = (
        f'#include "{SOURCES / f"{stem}.cu"}"\n'
        f'extern "C" void run(const int* geometry, void** arguments) {{\n'
        f"  emulation::run({expression}, geometry, arguments);\n}}\n"
    )
    digest = _digest(source.encode(), *(path.read_bytes() for path in [EMULATION, *SOURCES.iterdir()]))
    library = _folder() / f"{stem}-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
            driver, built = Path(scratch) / "driver.cpp", Path(scratch) / library.name
            driver.write_text(source)
            _compile("-shared", "-include", str(_header()), f"-I{SOURCES}", "-o", str(built), str(driver))
            built.replace(library)
    return ctypes.CDLL(str(library))


@functools.cache
def _header() -> Path:
    """A copy of the emulation beside its precompiled form: reading it is half of the work on a kernel."""
    place = _folder() / f"header-{_digest(EMULATION.read_bytes())}"
    header = place / EMULATION.name
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
            complete = Path(scratch) / "complete"
            complete.mkdir()
            copy = shutil.copy(EMULATION, complete)
            _compile("-x", "c++-header", "-o", f"{copy}.gch", copy)
            with contextlib.suppress(OSError):  # another process was first
                complete.rename(place)
    return header


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"lapgrad-emulation-{np.__version__}"
    folder.mkdir(exist_ok=True)
    return folder


def _digest(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:20]


def _compile(*arguments: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-w", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
