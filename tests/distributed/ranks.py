"""Programs with several ranks: how tests start them, and how such a program runs its checks and reports.

A program is a file with functions ``check_<what>(group)``. All ranks run all of them, in one start of the
processes, because a start takes seconds. Each function is a subtest to pytest.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fresh_process import environment

import lapgrad
from lapgrad.distributed import Group, init_group

FOLDER = Path(__file__).resolve().parent
#: Seconds after which a rank that waits for another one gives up: longer than any check.
PATIENCE = 60.0


def start_ranks(program: Path, size: int, *arguments: str, **changes: str) -> list[subprocess.Popen[str]]:
    """Start ``size`` processes of a program that find each other, as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seed = os.environ.get("LAPGRAD_TEST_SEED", "0")
    inherited = environment(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WORLD_SIZE=str(size),
        LAPGRAD_TEST_SEED=seed,
        LAPGRAD_CONTENTION="off",
        **changes,
    )
    path = os.pathsep.join([str(FOLDER), inherited["PYTHONPATH"]])
    return [
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**inherited, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def run_checks(program: str, size: int) -> list[dict[str, str]]:
    """Return for each rank the errors of the checks of a program of this folder, by name; "" if it passed."""
    with tempfile.TemporaryDirectory() as folder:
        processes = start_ranks(FOLDER / program, size, folder)
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        reports = []
        for rank, output in enumerate(outputs):
            report = Path(folder) / f"{rank}.json"
            assert report.exists(), f"rank {rank} ended without a report:\n{output}"
            reports.append(json.loads(report.read_text()))
        return reports


def assert_all_passed(program: str, subtests: pytest.Subtests, size: int = 2) -> None:
    """Run a program on ``size`` ranks; each of its checks is a subtest that must pass on all of them."""
    reports = run_checks(program, size)
    checks = list_checks(program)
    assert checks
    for check in checks:
        with subtests.test(check):
            failures = [
                f"rank {rank}:\n{report[check]}" for rank, report in enumerate(reports) if report[check]
            ]
            assert not failures, "\n".join(failures)


def list_checks(program: str) -> list[str]:
    """Return the names of the checks of a program of this folder."""
    lines = (FOLDER / program).read_text().splitlines()
    return [line[4:].partition("(")[0] for line in lines if line.startswith("def check_")]


def run_all(names: dict[str, object]) -> None:
    """Run all checks among ``names`` on this rank, and write a report into the folder of the command line."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    group = init_group(timeout=PATIENCE)
    report, seed = {}, int(os.environ.get("LAPGRAD_TEST_SEED", "0"))
    for name, check in names.items():
        if name.startswith("check_") and callable(check):
            # Every rank draws the same numbers.
            torch.default_generator.manual_seed(seed + len(name))
            report[name] = _run(check, group)
    (Path(sys.argv[1]) / f"{group.rank}.json").write_text(json.dumps(report))


def _run(check: Callable[[Group], None], group: Group) -> str:
    try:
        check(group)
    except Exception:
        return traceback.format_exc()
    return ""


def catch(function: Callable[[], object]) -> Exception:
    """Return the error that a function raises."""
    try:
        function()
    except (lapgrad.LapgradError, KeyError) as error:
        return error
    raise AssertionError("it should have failed")
