"""A test that hangs is reported by name with the stacks of its threads, and the others still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HANGING_TESTS = """
import ctypes, signal, time

def test_sleeps_in_python():
    time.sleep(1000)

def test_hangs_in_compiled_code():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).pause()  # holds the interpreter's lock

def test_is_fine():
    pass
"""


def test_hangs_are_failures(tmp_path: Path) -> None:
    """With the settings of this project, but shorter times."""
    (tmp_path / "test_hanging.py").write_text(HANGING_TESTS)
    settings = Path(__file__).resolve().parents[2] / "pyproject.toml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", "1", "-o", "timeout=1", "-o", "faulthandler_timeout=2"),
            *(f"--config-file={settings}", f"--rootdir={tmp_path}", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = done.stdout + done.stderr
    assert "2 failed, 1 passed" in said, said
    assert "FAILED test_hanging.py::test_sleeps_in_python - Failed: Timeout" in said, said
    assert "crashed while running 'test_hanging.py::test_hangs_in_compiled_code'" in said, said
    assert 'test_hanging.py", line 9 in test_hangs_in_compiled_code' in said, said
