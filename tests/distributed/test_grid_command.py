"""`lapgrad bench grid` in one process, and its model of time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapgrad import cli
from lapgrad_bench.bench import grid_command
from lapgrad_bench.bench.grid_model import H200, Machine, estimate, format_plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "distributed_exact.md"
pytestmark = pytest.mark.cpu


def test_times_and_memory_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sizes", "200", "--block", "64", "--repeats", "1", "--model"]
    assert cli.main(["bench", "grid", *options]) == 0
    printed = capsys.readouterr().out
    assert "1 x 1" in printed
    for name in ("grid n=200", "model n=200", "potrf", "potri", "kernel", "loss", "MB"):
        assert name in printed
    losses = [line.split("loss ")[1] for line in printed.splitlines() if "loss " in line]
    assert losses[0] == losses[1], "value and gradient of grid and model are the same to 12 digits"


def test_shapes_are_read() -> None:
    assert grid_command._read_shape("2x3") == (2, 3)
    with pytest.raises(SystemExit, match="2x2"):
        grid_command._read_shape("2 by 3")


def test_grids_that_cannot_be_made_are_named() -> None:
    for shape, message in (("0x1", "two positive numbers"), ("2x2", "needs several processes")):
        with pytest.raises(SystemExit, match=message):
            cli.main(["bench", "grid", "--grid", shape])


def test_the_tables_of_the_guide_are_those_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "grid", "--sizes", "100000", "1000000", "--plan", "16", "64", "256", "1024"]
    assert cli.main(command) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 12
    text = PAGE.read_text()
    for row in rows:
        assert row in text


def test_the_model_counts_what_it_says() -> None:
    machine = Machine("", 1e9, 1e7, 1e9, 1e-5, 0.0, 100, 0.0)
    one, four = estimate(1000, (1, 1), machine), estimate(1000, (2, 2), machine)
    assert one.products == 1.0
    assert one.messages == one.panels == one.starts == 0.0
    assert one.kernel == pytest.approx(0.05)
    assert four.products == 0.25
    assert four.messages == pytest.approx(8 * 0.5e6 * 3.5 / 1e9)
    assert four.starts == pytest.approx(9 * 10 * 1e-5)
    assert one.memory == pytest.approx(8 * (1e6 + 2 * 100e3))
    assert four.seconds == sum(four[:5])
    assert 0.0 < four.efficiency < one.efficiency < 1.0


def test_what_does_not_fit_is_said() -> None:
    assert "too much" in format_plan(10**6, [16], H200)[-1]
