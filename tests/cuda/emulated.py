"""Kernels of ``_cuda/kernels`` compiled for the CPU: see ``emulation/cuda_on_cpu.h``."""

from __future__ import annotations

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
    digest = hashlib.sha256(
        source.encode() + b"".join(p.read_bytes() for p in [EMULATION, *SOURCES.iterdir()])
    )
    folder = Path(tempfile.gettempdir()) / f"lapgrad-emulation-{np.__version__}"
    folder.mkdir(exist_ok=True)
    library = folder / f"{stem}-{digest.hexdigest()[:20]}.so"
    if not library.exists():
        assert COMPILER is not None
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            driver, built = Path(scratch) / "driver.cpp", Path(scratch) / library.name
            driver.write_text(source)
            options = [
                "-std=c++17",
                "-O1",
                "-fPIC",
                "-shared",
                "-w",
                "-include",
                str(EMULATION),
                f"-I{SOURCES}",
            ]
            done = subprocess.run(
                [COMPILER, *options, "-o", str(built), str(driver)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            built.replace(library)
    return ctypes.CDLL(str(library))
