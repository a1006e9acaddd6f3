"""Peak memory of one call.

On the CPU as the operating system sees it (BLAS work space included), on a GPU as torch's allocator does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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


def measurable(device: torch.device = _CPU) -> bool:
    """Whether this system lets a process read and reset its own peak memory (Linux does)."""
    if device.type == "cuda":
        return torch.cuda.is_available()
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return "VmHWM" in _STATUS.read_text()


def peak_extra_bytes(
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
        return _peak_of_allocator(function, device)
    _release_unused()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _resident("VmRSS")
    result = function()
    peak = _resident("VmHWM")
    del result
    return max(0, peak - before)


def _release_unused() -> None:
    """Gives back what the C library keeps of freed blocks: memory that is reused would not be counted."""
    with contextlib.suppress(OSError, AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _peak_of_allocator(function: Callable[[], Any], device: torch.device) -> int:
    gc.collect()  # what is freed on the way would hide what is allocated
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
    result = function()
    peak = torch.cuda.memory_stats(device)["requested_bytes.all.peak"]
    del result
    return max(0, int(peak) - int(before))


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}")
    return 1024 * int(found.group(1))
