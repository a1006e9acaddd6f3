"""The example of the guide gives the same result in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from ranks import FOLDER, start_ranks

from lapgrad.demo.examples import Example

pytestmark = pytest.mark.cpu

EXAMPLE = FOLDER.parents[1] / "examples" / "distributed_sparse_gp.py"


def test_example_on_two_ranks(tmp_path: Path) -> None:
    """Both write a checkpoint after 30 steps, in which the loss is the same."""
    options = ("--quick", "--output", str(tmp_path), "--checkpoint")
    processes = start_ranks(EXAMPLE, 2, *options, str(tmp_path / "2.pt"), MPLBACKEND="Agg")
    pyplot.switch_backend("Agg")
    Example("distributed_sparse_gp", EXAMPLE).run((*options, str(tmp_path / "1.pt")))
    pyplot.close("all")
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    assert "2 processes" in outputs[0]
    one, two = (torch.load(tmp_path / f"{size}.pt", weights_only=True)["training"]["loss"] for size in (1, 2))
    assert two == pytest.approx(one, rel=1e-6)
    assert (tmp_path / "distributed_sparse_gp.png").exists()
