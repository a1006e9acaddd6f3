"""ScaLAPACK over MPI on real processes: values, gradients, memory and failures.

Skipped where the packages mkl and mpich are not installed; ``make test-distributed`` installs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lapgrad.distributed.blockcyclic import scalapack_library

HERE = Path(__file__).parent
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
#: Deviations from one process, relative to the largest entry: 1e-8 is promised, these are a few times what is
#: seen.
LARGEST = {"float64": 1e-10, "float32": 2e-2}

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(
        not (scalapack_library.is_installed() and MPIEXEC.exists()),
        reason="the packages mkl and mpich are not installed: make test-distributed",
    ),
]


def start(processes: int, *arguments: str, seconds: float = 200.0) -> subprocess.CompletedProcess[str]:
    command = [str(MPIEXEC), "-n", str(processes), sys.executable, *arguments]
    # Processes that wait for each other leave their core to others: here there may be fewer cores than
    # processes.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("shape", ["1x1", "1x2", "2x2", "4x1"])
def test_criterion(shape: str, block: int) -> None:
    """n is not a multiple of the blocks; value and all gradients on every process."""
    check(shape, block, "--n", "2000", "--parts", "criterion", "failures")


@pytest.mark.parametrize("shape", ["1x1", "1x2", "2x2", "4x1"])
def test_operators(shape: str) -> None:
    check(shape, 32, "--n", "200", "--parts", "operators")


def test_float32_and_more_processes_than_blocks() -> None:
    check("2x2", 32, "--n", "37", "--dtype", "float32", largest=LARGEST["float32"])


def check(shape: str, block: int, *options: str, largest: float = LARGEST["float64"]) -> None:
    rows, columns = map(int, shape.split("x"))
    arguments = (str(HERE / "on_scalapack.py"), shape, "--block", str(block), *options)
    check_output(start(rows * columns, *arguments), rows * columns, largest)


def check_output(found: subprocess.CompletedProcess[str], processes: int, largest: float) -> None:
    assert found.returncode == 0, found.stderr
    lines = re.findall(r"(\d+) (\S+) (\d\.\d+e[+-]\d+)", found.stdout)
    assert len(lines) == processes * len({name for _, name, _ in lines}), found.stdout
    assert len(lines) >= 6 * processes
    for rank, name, difference in lines:
        assert float(difference) < largest, f"{name} on process {rank}: {difference}"


def run_program(tmp_path: Path, processes: int, body: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import os, signal, sys, time, torch
            from lapgrad.distributed import make_grid
            from lapgrad.models import GPRegression
            torch.manual_seed(0)
            X = torch.rand(300, 2, dtype=torch.float64)
            y = torch.sin(6 * X[:, 0])
            grid = make_grid(block=32)
        """)
        + textwrap.dedent(body)
    )
    return start(processes, str(program), seconds=30.0)


def test_fit_predict_and_save(tmp_path: Path) -> None:
    """A fit on two processes learns what one process learns; the same program, started in another way."""
    body = f"""
        model = GPRegression(X, y + 0.1 * torch.randn(300, dtype=torch.float64), distributed=grid)
        result = model.fit(starts=1, steps=15)
        mean, variance = model.predict(X[:3])
        if grid.is_first:
            model.save("{tmp_path}/model")
            print(repr(result.loss), *mean.tolist(), *variance.tolist())
        """
    outputs = []
    for processes in (1, 2):
        found = run_program(tmp_path, processes, body)
        assert found.returncode == 0, found.stderr
        outputs.append([float(number) for number in found.stdout.split()])
    for one, two in zip(*outputs, strict=True):
        assert abs(one - two) <= 1e-8 * max(1.0, abs(one))


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "raise RuntimeError('of this process')", "sys.exit(3)"]
)
def test_a_process_that_dies_ends_the_others(tmp_path: Path, death: str) -> None:
    begin = time.monotonic()
    found = run_program(
        tmp_path,
        2,
        f"""
        model = GPRegression(X, y, distributed=grid)

        def stop_sometimes(step, loss):
            if grid.rank == 1 and step == 2:
                {death}

        while True:
            model.fit(starts=1, steps=5, tolerance=0.0, callback=stop_sometimes)
        """,
    )
    assert found.returncode != 0
    assert time.monotonic() - begin < 30.0


def test_shapes_that_do_not_fit_the_number_of_processes(tmp_path: Path) -> None:
    found = run_program(tmp_path, 2, "make_grid((2, 2))")
    assert found.returncode != 0
    assert "needs 4 processes, and mpiexec has started 2" in found.stderr
