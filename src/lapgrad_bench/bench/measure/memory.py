"""Peak memory of one call.

On the CPU as the operating system sees it (BLAS work space included), on a GPU as torch's allocator does.

There are two measures on the CPU. Resident memory (``measure_peak_bytes``) is what a call really uses, in any
process, to a few hundred kB. Address space (``measure_mapped_bytes``) is exact and the same in every run, but
needs a process that was started with ``EVERY_BUFFER_MAPPED``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to clear_refs it sets the peak (VmHWM) back to the present resident size; see proc(5)."""


_CPU = torch.device("cpu")

#: In the environment of a process: the C library maps every block from 64 KiB on by itself, and unmaps it
#: when it is freed. It is read once, when the process starts.
EVERY_BUFFER_MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def can_measure_memory(device: torch.device = _CPU) -> bool:
    """Whether this system lets a process read and reset its own peak memory (Linux does)."""
    if device.type == "cuda":
        return torch.cuda.is_available()
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    status = _STATUS.read_text()
    return all(f"{field}:" in status for field in ("VmHWM", "VmPeak", "RssAnon"))


def measure_peak_bytes(
    function: Callable[[], Any], device: torch.device = _CPU, *, called_before: bool = False
) -> int:
    """Bytes in use at the call's peak beyond what was in use before; the result it returns counts.

    On the CPU exact to a few hundred kB: use it with operands of 100 MB. On a GPU these are the bytes asked
    of torch's allocator, work space of torch's own routines included. The function is called once before
    (unless it was, `called_before`), so that what libraries allocate on first use is there already.
    """
    if not called_before:
        function()
    if device.type == "cuda":
        return _measure_allocator_peak(function, device)
    _release_unused()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _read_status("RssAnon")
    result = function()
    # The system may take pages of files (code of libraries, say) from a process, and they come back when they
    # are used. They do not count: those that are there at the end are subtracted from the peak.
    peak = _read_status("VmHWM") - _read_status("RssFile") - _read_status("RssShmem")
    del result
    return max(0, peak - before)


def measure_mapped_bytes(function: Callable[[], Any]) -> int:
    """Bytes of address space at the call's peak beyond those before; the result it returns counts.

    Exact but for blocks below 64 KiB, which are not counted. Address space changes only when this process
    maps or unmaps memory. It does not depend on other processes, on pages that the system takes away or gives
    back, on the size of pages, or on whether a buffer is used once it is allocated. The function is called
    once before, so that what libraries allocate on first use is there already.

    Raises:
        RuntimeError: The process was not started with ``EVERY_BUFFER_MAPPED``: buffers would come out of
            memory that the C library has kept, and not be counted.
    """
    if any(os.environ.get(name) != value for name, value in EVERY_BUFFER_MAPPED.items()):
        raise RuntimeError(f"measure_mapped_bytes needs a process started with {EVERY_BUFFER_MAPPED}")
    function()
    gc.collect()  # what is freed on the way would hide what is allocated
    # The peak of address space cannot be reset. A mapping without access rights, which takes no memory,
    # raises the present size to it instead, so that whatever the call maps on top is a new peak.
    missing = _read_status("VmPeak") - _read_status("VmSize")
    filler = mmap.mmap(-1, missing, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0) if missing else None
    before = _read_status("VmSize")
    result = function()
    peak = _read_status("VmPeak")
    del result
    if filler is not None:
        filler.close()
    return peak - before


def _release_unused() -> None:
    """Gives back what the C library keeps of freed blocks: memory that is reused would not be counted."""
    with contextlib.suppress(OSError, AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _measure_allocator_peak(function: Callable[[], Any], device: torch.device) -> int:
    gc.collect()  # what is freed on the way would hide what is allocated
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
    result = function()
    peak = torch.cuda.memory_stats(device)["requested_bytes.all.peak"]
    del result
    return max(0, int(peak) - int(before))


def _read_status(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}")
    return 1024 * int(found.group(1))
