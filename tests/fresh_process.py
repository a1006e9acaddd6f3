"""Runs Python in a process of its own, for decisions at import and measurements of whole processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lapgrad

#: The tests themselves, and the package that they test.
_TESTS = Path(__file__).resolve().parent
_PLACES = (_TESTS, _TESTS / "ops", _TESTS / "core", Path(lapgrad.__file__).resolve().parents[1])


def make_environment(**changes: str) -> dict[str, str]:
    """The environment of a process that can import modules of the tests and the package that they test."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAPGRAD_")}
    path = os.pathsep.join([*map(str, _PLACES), inherited.get("PYTHONPATH", "")])
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``code``; modules of the tests can be imported in it, and warnings are errors as in the tests."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=make_environment(**changes),
        capture_output=True,
        text=True,
        timeout=300,
    )


def get_output(code: str, **changes: str) -> str:
    """What ``code`` prints; it must succeed."""
    done = run(code, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout
