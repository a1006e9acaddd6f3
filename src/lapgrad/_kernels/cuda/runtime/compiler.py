"""Kernels from ``kernels/*.cu``: compiled by NVRTC at first use, kept on disk, loaded once per device.

The name of the file on disk is a digest of everything that its content depends on: sources, kernel, options,
architecture and version of NVRTC. The file is written under another name and then renamed, so that no other
process reads an incomplete one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "kernels"
_OPTIONS = ("c++17", "-default-device")


def get_cache_directory() -> Path:
    """The folder of compiled kernels: LAPGRAD_CACHE, else ``lapgrad`` in the user's cache directory."""
    chosen = os.environ.get("LAPGRAD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lapgrad"


def compile_or_read(stem: str, expression: str, architecture: str) -> tuple[bytes, str]:
    """The machine code that holds the kernel ``expression`` of ``kernels/<stem>.cu``, and its symbol."""
    file = get_cache_directory() / f"{stem}-{_compute_digest(stem, expression, architecture)}.cubin"
    kept = _read_kept(file)
    if kept is not None:
        return kept
    code, symbol = compile_source(stem, expression, architecture)
    _keep(file, code, symbol)
    return code, symbol


def compile_source(stem: str, expression: str, architecture: str) -> tuple[bytes, str]:
    """Compile without asking the cache, and without asking for a device."""
    code, symbols = compile_together(stem, (expression,), architecture)
    return code, symbols[expression]


def compile_together(
    stem: str, expressions: tuple[str, ...], architecture: str
) -> tuple[bytes, dict[str, str]]:
    """Compile several kernels of a file; return their machine code, and the symbol of each."""
    from cuda.core import Program, ProgramOptions

    source = SOURCES / f"{stem}.cu"
    options = ProgramOptions(
        name=str(source),
        arch=architecture,
        std="c++17",
        include_path=str(SOURCES),
        device_as_default_execution_space=True,
    )
    result = Program(source.read_text(), "c++", options).compile("cubin", name_expressions=expressions)
    symbols = {expression: result.symbol_mapping[expression] for expression in expressions}
    return result.code, {
        expression: symbol.decode() if isinstance(symbol, bytes) else symbol
        for expression, symbol in symbols.items()
    }


@functools.cache
def _compute_digest(stem: str, expression: str, architecture: str) -> str:
    from cuda.bindings import nvrtc

    digest = hashlib.sha256()
    for part in (stem, expression, architecture, *_OPTIONS, str(nvrtc.nvrtcVersion())):
        digest.update(part.encode() + b"\0")
    for source in [SOURCES / f"{stem}.cu", *sorted(SOURCES.glob("*.cuh"))]:
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _read_kept(file: Path) -> tuple[bytes, str] | None:
    """Return machine code and symbol from disk; None if there are none, or the file is damaged."""
    try:
        code = file.read_bytes()
        note = json.loads(file.with_suffix(".json").read_text())
        whole = note["digest"] == hashlib.sha256(code).hexdigest()
        return (code, str(note["symbol"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(file: Path, code: bytes, symbol: str) -> None:
    """Write machine code to the cache; ignore errors, because a missing cache only costs time."""
    note = {"symbol": symbol, "digest": hashlib.sha256(code).hexdigest()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for path, content in (
            (file.with_suffix(".json"), json.dumps(note).encode()),
            (file, code),
        ):
            handle, name = tempfile.mkstemp(dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as written:
                    written.write(content)
                os.replace(name, path)
            except OSError:
                os.unlink(name)
                raise
    except OSError:
        return


@functools.cache
def load_kernel(stem: str, expression: str, device: int, architecture: str) -> Any:
    """Return the kernel, loaded on a device, that may use all the shared memory a block can have."""
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    code, symbol = compile_or_read(stem, expression, architecture)
    target = Device(device)
    target.set_current()
    loaded = ObjectCode.from_cubin(code, symbol_mapping={expression: symbol.encode()}).get_kernel(expression)
    most = target.properties.max_shared_memory_per_block_optin
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuKernelSetAttribute(limit, most, loaded.handle, device)
    if int(status) != 0:
        raise RuntimeError(
            f"lapgrad: the driver refused {most} bytes of shared memory for {expression}: {status}"
        )
    return loaded
