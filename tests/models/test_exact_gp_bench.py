"""The benchmark of exact processes: peers compute the same, and it says what it has measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_close

from lapgrad import cli
from lapgrad_bench.bench import exact_gp


@pytest.mark.parametrize("kernel", exact_gp.KERNELS)
def test_peers_agree(kernel: str) -> None:
    problem = exact_gp.Problem.of(40, 2, kernel)
    own = exact_gp.ours(problem)()
    other = exact_gp.written_out(problem)()
    assert_close(own[0], other[0], HIGHER_ORDER)
    # Of the model: noise above its floor, lengthscales, variance.
    assert_close(own[2], other[1], HIGHER_ORDER)
    assert_close(own[3], other[2], HIGHER_ORDER)


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    options = [
        "--sizes",
        "50",
        "--kernels",
        "rbf",
        "--seconds",
        "0.01",
        "--threads",
        str(torch.get_num_threads()),
    ]
    assert cli.main(["bench", "gp", *options, "--markdown", "--output", str(file)]) == 0
    assert "rbf, n = 50, torch / lapgrad, time" in capsys.readouterr().out
    bars = json.loads(file.read_text())["bars"]
    assert all(bar["figure"] > 0 for bar in bars if "time" in bar["what"])
    with pytest.raises(SystemExit):
        cli.main(["bench", "gp", "--kernels", "cubic"])
    assert "rbf, matern52" in capsys.readouterr().err
