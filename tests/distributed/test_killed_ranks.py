"""A rank that is killed ends the fit on the others, which say which one it was; torchrun starts it again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fit_that_is_killed import fit
from fresh_process import make_environment
from ranks import FOLDER

pytestmark = pytest.mark.cpu

PROGRAM = FOLDER / "fit_that_is_killed.py"
#: What users are promised; 1 s is seen.
SECONDS_UNTIL_THE_END = 30.0


def read(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text()))


@pytest.mark.slow
def test_torchrun_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    """One rank is killed at step 5; the other names it; torchrun restarts both; the result is the same."""
    # The undisturbed fit, of one process.
    fit(tmp_path / "alone", 0)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "--max-restarts=1", str(PROGRAM), str(tmp_path), "5"],
        env=make_environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    error = read(tmp_path / "error0.json")
    assert error["ranks"] == [1]
    assert "rank 1 (process" in str(error["error"])
    killed = float((tmp_path / "killed").read_text())
    assert float(str(error["time"])) - killed < SECONDS_UNTIL_THE_END
    expected = read(tmp_path / "alone" / "result0.json")
    for rank in range(2):
        found = read(tmp_path / f"result{rank}.json")
        assert found["begun"] == 4
        for name in ("loss", "sum"):
            assert found[name] == pytest.approx(expected[name], rel=1e-10)
