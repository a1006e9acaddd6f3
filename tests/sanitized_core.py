"""A plugin of pytest (-p sanitized_core): lapgrad runs on the core in SANITIZED_CORE, a file, instead of its own.

That core is built with -DLAPGRAD_SANITIZE=ON, and the process is started with LD_PRELOAD=libasan.so.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_FILE = Path(os.environ["SANITIZED_CORE"])
_SPEC = importlib.util.spec_from_file_location("lapgrad._core", _FILE)
if _SPEC is None or _SPEC.loader is None:
    raise ImportError(f"{_FILE} is no extension module")
_core = importlib.util.module_from_spec(_SPEC)
sys.modules["lapgrad._core"] = _core
_SPEC.loader.exec_module(_core)


def pytest_report_header() -> str:
    """Say, and make sure, which core runs."""
    from lapgrad import _cpu

    assert _cpu.core is _core
    return f"core: {_FILE}"
