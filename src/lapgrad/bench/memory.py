"""Peak memory of one call, as the operating system sees it (BLAS work space included)."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to clear_refs it sets the peak (VmHWM) back to the present resident size; see proc(5)."""


def measurable() -> bool:
    """Whether this system lets a process read and reset its own peak memory (Linux does)."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return "VmHWM" in _STATUS.read_text()


def peak_extra_bytes(function: Callable[[], Any]) -> int:
    """Bytes resident at the call's peak beyond what was resident before; the result it returns counts.

    Exact to a few hundred kB: use it with operands of 100 MB. The function is called once before, so that
    what libraries allocate on first use is there already.
    """
    function()
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


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}")
    return 1024 * int(found.group(1))
