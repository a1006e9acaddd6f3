"""A plugin of pytest (-p sanitized_core): lapgrad runs on the core in the file SANITIZED_CORE, not its own.

That core is built with -DLAPGRAD_SANITIZE=ON, and the process is started with libasan.so in LD_PRELOAD: see
`make test-sanitize`. With SANITIZED_COMPLETELY set, the run fails unless tests have called every routine of
the core.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_FILE = Path(os.environ["SANITIZED_CORE"])

#: Reads the lower triangle of a matrix of order 100 from a buffer for one of order 10.
_READ_PAST_THE_END = """
import ctypes, sanitized_core
core = sanitized_core.load()
memory = ctypes.create_string_buffer(8 * 100), ctypes.create_string_buffer(8 * 10_000)
source, target = map(ctypes.addressof, memory)
core.add_transpose(8, (source, 10_000, 100, 1), (target, 10_000, 100, 1), 1, 100, 0, 100)
"""


def load() -> ModuleType:
    """Return the sanitized core, as ``lapgrad._core``."""
    spec = importlib.util.spec_from_file_location("lapgrad._core", _FILE)
    if spec is None or spec.loader is None:
        raise ImportError(f"{_FILE} is no extension module")
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


class _WatchedCore(ModuleType):
    """The compiled core; records the names of routines that were called, and of classes that were used."""

    def __init__(self, core: ModuleType) -> None:
        super().__init__(core.__name__)
        self._core = core
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        routine = getattr(self._core, name)
        if isinstance(routine, type) or not callable(routine):
            self.called.add(name)
            return routine

        def call(*arguments: Any) -> Any:
            self.called.add(name)
            return routine(*arguments)

        return call

    def __dir__(self) -> list[str]:
        """Names of the core's routines: lapgrad finds shortcuts by their names."""
        return dir(self._core)

    def never_called(self) -> list[str]:
        routines = {name for name in dir(self._core) if not name.startswith("_")}
        return sorted(routines - self.called)


_WATCHED = _WatchedCore(load())
# pytest imports this file before conftest.py, which imports lapgrad.
sys.modules[_WATCHED.__name__] = _WATCHED


def pytest_sessionstart() -> None:
    """Check, with a deliberate fault in a child process, that the sanitizer reports faults."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _READ_PAST_THE_END],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if "heap-buffer-overflow" not in done.stderr:
        pytest.exit(f"a read past the end of a buffer was not reported:\n{done.stderr[-2000:]}", returncode=1)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a routine was not called, if that is asked for."""
    from lapgrad._kernels import cpu as _cpu

    assert _cpu.core is _WATCHED
    never = _WATCHED.never_called()
    if never and os.environ.get("SANITIZED_COMPLETELY"):
        print(f"\nnot called by any test: {', '.join(never)}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
