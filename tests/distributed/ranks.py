"""Programs with several ranks: how tests start them, and how such a program runs its checks and reports.

Modules ``<what>_on_ranks.py`` have functions ``check_<what>(group)``. All ranks run all of them, in one start
of the processes, because a start takes seconds. Each function is a subtest to pytest.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from fresh_process import make_environment

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
    inherited = make_environment(
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


def run_checks(modules: Sequence[str], size: int) -> list[dict[str, str]]:
    """Return for each rank the errors of the checks of modules of this folder, by name; "" if it passed."""
    with tempfile.TemporaryDirectory() as folder:
        processes = start_ranks(FOLDER / "ranks.py", size, folder, *modules)
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        reports = []
        for rank, output in enumerate(outputs):
            report = Path(folder) / f"{rank}.json"
            assert report.exists(), f"rank {rank} ended without a report:\n{output}"
            reports.append(json.loads(report.read_text()))
        return reports


def assert_all_passed(modules: Sequence[str], subtests: pytest.Subtests, size: int = 2) -> None:
    """Run every ``check_...`` of some modules as a subtest, which must pass on all of ``size`` ranks."""
    reports = run_checks(modules, size)
    sources = "".join((FOLDER / f"{module}.py").read_text() for module in modules)
    checks = re.findall(r"^def (check_\w+)", sources, re.MULTILINE)
    assert checks
    for check in checks:
        with subtests.test(check):
            failures = [
                f"rank {rank}:\n{report[check]}" for rank, report in enumerate(reports) if report[check]
            ]
            assert not failures, "\n".join(failures)


def run_all(folder: Path, modules: Sequence[str]) -> None:
    """Run all checks of some modules on this rank, and write a report into a folder."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    group = init_group(timeout=PATIENCE)
    report, seed = {}, int(os.environ.get("LAPGRAD_TEST_SEED", "0"))
    for module in modules:
        for name, check in vars(importlib.import_module(module)).items():
            if name.startswith("check_"):
                # Every rank draws the same numbers.
                torch.default_generator.manual_seed(1000 * seed + len(name))
                report[name] = _run(check, group)
    (folder / f"{group.rank}.json").write_text(json.dumps(report))
    group.close()


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


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2:])
