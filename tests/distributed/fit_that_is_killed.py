"""Fits a model on all ranks with a checkpoint. In the first start, one rank is killed at a step.

    fit_that_is_killed.py FOLDER STEP: rank 1 ends itself by SIGKILL in the callback of this step; 0: never.

At its end each rank writes the loss and a checksum of the parameters into FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from lapgrad import ProcessGroupError
from lapgrad.distributed import Checkpoint, init_group, shard
from lapgrad.models import SparseGPRegression


def fit(folder: Path, killed_at: int) -> None:
    folder.mkdir(exist_ok=True)
    group = init_group()
    source = torch.Generator().manual_seed(0)
    X = torch.randn(200, 2, dtype=torch.float64, generator=source)
    X, y = shard(X, torch.sin(X.sum(1)), group=group)
    model = SparseGPRegression(X, y, inducing=5, generator=0, group=group)
    checkpoint = Checkpoint(folder / "fit.pt", model, every=2)
    killed = folder / "killed"

    def watch(step: int, loss: float) -> None:
        checkpoint(step, loss)
        if group.rank == 1 and step == killed_at and not killed.exists():
            killed.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    report: dict[str, object]
    resumed = checkpoint.load()
    try:
        result = model.fit("adam", steps=10, tolerance=0.0, resume=resumed, callback=watch)
    except ProcessGroupError as error:
        report = {"error": str(error), "ranks": error.ranks, "time": time.time()}
        (folder / f"error{group.rank}.json").write_text(json.dumps(report))
        raise
    total = sum(parameter.detach().sum().item() for parameter in model.parameters())
    begun = 0 if resumed is None else resumed["step"]
    report = {"loss": result.loss, "sum": total, "begun": begun}
    (folder / f"result{group.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    # torchrun tells the others to end when it sees that one has died. They are to find out by themselves.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fit(Path(sys.argv[1]), int(sys.argv[2]))
