"""Tests of sanitize.py: reading the output of compute-sanitizer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sanitize

OWN = {"reshape_triangle", "gesvd_of_factors", "syevd"}

QUIET = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""

UNINITIALISED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 8 bytes
=========     at void reshape_triangle<double, (int)0>(T1 *, long long, long long, long long)+0x2b0
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f0000000008
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2dd7b4] in libcuda.so.1
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4, at::native::Add<float>>(int)+0x90
=========     by thread (1,0,0) in block (0,0,0)
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at _Z5syevdIdLi8ELi8ELb1EEvPKT_xxxPS0_S3_Pxxx+0x90
=========
========= Host API uninitialized memory access
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 4 errors
"""

RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at void gesvd_of_factors<double, (int)2>(const T1 *)+0x1f40
=========     and Write access at void gesvd_of_factors<double, (int)2>(const T1 *)+0x2a80 [4096 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_a_log_without_a_report() -> None:
    assert not list(sanitize.read_reports(QUIET))


def test_reports_and_whom_they_are_about() -> None:
    found = list(sanitize.read_reports(UNINITIALISED))
    assert [report.function for report in found[:2]] == [
        "reshape_triangle",
        "at::native::vectorized_elementwise_kernel",
    ]
    assert [sanitize.is_own(report, OWN) for report in found] == [True, False, True, True]


def test_races() -> None:
    (found,) = sanitize.read_reports(RACE)
    assert found.function == "gesvd_of_factors"
    assert found.title.startswith("Error: Race reported")


def write_fake_sanitizer(folder: Path, log: str, status: int, says: str = "launched 3 kernels") -> str:
    """Write a program that takes compute-sanitizer's options and writes the given log; return its path."""
    written = folder / "what to write"
    written.write_text(log)
    program = folder / "compute-sanitizer"
    takes_options = 'while [ "$1" != --log-file ]; do shift; done'
    program.write_text(f'#!/bin/sh\n{takes_options}\ncp "{written}" "$2"\necho {says}\nexit {status}\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("tool", "log", "status", "own", "foreign", "fails"),
    [
        ("racecheck", QUIET, 0, 0, 0, False),
        ("racecheck", RACE, sanitize.REPORTED, 1, 0, False),
        ("initcheck", UNINITIALISED, sanitize.REPORTED, 3, 1, False),
        ("memcheck", UNINITIALISED, sanitize.REPORTED, 4, 0, False),
        ("memcheck", QUIET, sanitize.REPORTED, 0, 0, True),  # something that was not understood
        ("memcheck", QUIET, 1, 0, 0, True),  # the program failed
        ("memcheck", "", 0, 0, 0, True),  # the tool did not come to its end
    ],
)
def test_outcomes(
    tmp_path: Path, tool: str, log: str, status: int, own: int, foreign: int, fails: bool
) -> None:
    outcome = sanitize.run("packing", tool, write_fake_sanitizer(tmp_path, log, status), OWN)
    assert (outcome.own.total(), outcome.foreign.total(), bool(outcome.failure)) == (own, foreign, fails)


def test_a_program_that_did_nothing_is_a_failure(tmp_path: Path) -> None:
    outcome = sanitize.run(
        "packing", "memcheck", write_fake_sanitizer(tmp_path, QUIET, 0, says="nothing"), OWN
    )
    assert outcome.failure
    assert outcome.own == Counter()


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processes that it has started, which hold its output open."""
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\necho begun\nsleep 600 &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sanitize, "LIMIT", 1)
    outcome = sanitize.run("packing", "memcheck", str(program), OWN)
    assert "took longer than 1 s\nbegun" in outcome.failure
