"""Peak memory of one call.

On a GPU torch's allocator reports it. On the CPU the operating system reports two figures, both with the
workspace of the BLAS. Resident memory (``measure_peak_bytes``) is what a call really uses, exact to a few
hundred kB, in any process. Address space (``measure_mapped_bytes``) is exact and the same in every run, but
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
"""Writing this to clear_refs resets the peak (VmHWM) to the present resident size; see proc(5)."""


_CPU = torch.device("cpu")

#: Environment in which the C library maps every block of 64 KiB or more separately, and unmaps it when it is
#: freed. The C library reads it once, when the process starts.
EVERY_BUFFER_MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def can_measure_memory(device: torch.device = _CPU) -> bool:
    """Return whether a process can read and reset its own peak memory on this system (Linux can)."""
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
    """Return the bytes in use at the peak of a call beyond those in use before it; its result counts.

    On the CPU the figure is exact to a few hundred kB: use operands of 100 MB. On a GPU it is the number of
    bytes requested from torch's allocator, including the workspace of torch's own routines. The function is
    called once before, unless `called_before`, so that buffers that libraries allocate on first use do not
    count.
    """
    if not called_before:
        function()
    if device.type == "cuda":
        return _measure_allocator_peak(function, device)
    _release_unused()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _read_status("RssAnon")
    result = function()
    # The system may evict pages of files, such as the code of libraries, and read them again when they are
    # used. They must not count: those that are resident at the end are subtracted from the peak.
    peak = _read_status("VmHWM") - _read_status("RssFile") - _read_status("RssShmem")
    del result
    return max(0, peak - before)


def measure_mapped_bytes(function: Callable[[], Any]) -> int:
    """Return the bytes of address space at the peak of a call beyond those before it; its result counts.

    The figure is exact, but blocks below 64 KiB are not counted. Address space changes only when this process
    maps or unmaps memory. It does not depend on other processes, on evicted pages, on the size of pages, or
    on whether an allocated buffer is used. The function is called once before, so that buffers that libraries
    allocate on first use do not count.

    Raises:
        RuntimeError: The process was not started with ``EVERY_BUFFER_MAPPED``. The C library would reuse
            freed memory for buffers, and they would not be counted.
    """
    if any(os.environ.get(name) != value for name, value in EVERY_BUFFER_MAPPED.items()):
        raise RuntimeError(f"measure_mapped_bytes needs a process started with {EVERY_BUFFER_MAPPED}")
    function()
    gc.collect()  # Garbage that is freed during the call would hide what it allocates.
    # The peak of address space cannot be reset. Instead a mapping without access rights, which takes no
    # memory, raises the present size to the peak, so that everything that the call maps makes a new peak.
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
    """Return freed blocks that the C library keeps to the system: memory that is reused would not count."""
    with contextlib.suppress(OSError, AttributeError):  # Only glibc has this function.
        ctypes.CDLL(None).malloc_trim(0)


def _measure_allocator_peak(function: Callable[[], Any], device: torch.device) -> int:
    gc.collect()  # Garbage that is freed during the call would hide what it allocates.
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
