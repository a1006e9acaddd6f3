"""The example of the guide gives the same result in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import FOLDER, start_ranks

pytestmark = pytest.mark.cpu

EXAMPLE = FOLDER.parents[1] / "examples" / "distributed_sparse_gp.py"


def test_example_on_two_ranks(tmp_path: Path) -> None:
    """Both write a checkpoint after 30 steps, in which the loss is the same."""
    losses = []
    for size in (1, 2):
        options = ("--quick", "--output", str(tmp_path), "--checkpoint", str(tmp_path / f"{size}.pt"))
        processes = start_ranks(EXAMPLE, size, *options, MPLBACKEND="Agg")
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output
        assert f"{size} processes" in outputs[0]
        losses.append(torch.load(tmp_path / f"{size}.pt", weights_only=True)["training"]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert (tmp_path / "distributed_sparse_gp.png").exists()
