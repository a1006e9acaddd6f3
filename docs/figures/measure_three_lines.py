"""Times the three lines that the README changes, before and after, and writes ``three_lines.json``.

    python docs/figures/measure_three_lines.py [--threads 2] [--seconds 20]

Both forms are read from the README, and take turns. ``draw_speedups.py`` writes the README's sentence.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import lapgrad
from lapgrad_bench.common.machine import collect_metadata

FOLDER = Path(__file__).resolve().parent
README = FOLDER.parents[1] / "README.md"
RESULTS = FOLDER / "three_lines.json"
ORDER = 1024

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def read_losses(readme: str) -> dict[str, Loss]:
    """Return the two functions of (K, y) that the lines of the README compute, torch's and lapgrad's."""
    (block,) = re.findall(r"```diff\n(.*?)```", readme, re.DOTALL)
    return {
        name: make_loss("\n".join(line[1:] for line in block.splitlines() if line[0] == sign))
        for name, sign in {"torch": "-", "lapgrad": "+"}.items()
    }


def make_loss(code: str) -> Loss:
    """Return a function of (K, y) that runs the code and returns its variable ``loss``."""
    compiled = compile(code, "README.md", "exec")

    def compute(K: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        names = {"torch": torch, "lapgrad": lapgrad, "K": K, "y": y}
        exec(compiled, names)
        loss: torch.Tensor = names["loss"]
        return loss

    return compute


def make_operands(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a covariance that requires a gradient, and observations (n, 1)."""
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    K = torch.exp(-50 * (x[:, None] - x) ** 2) + 0.1 * torch.eye(n, dtype=torch.float64)
    return K.requires_grad_(), torch.sin(6 * x)[:, None]


def time_in_turns(losses: dict[str, Loss], seconds: float) -> dict[str, dict[str, float]]:
    """Return the median seconds of forward and backward of each function."""
    K, y = make_operands(ORDER)
    samples: dict[str, dict[str, list[float]]] = {name: {"forward": [], "backward": []} for name in losses}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for name, compute in losses.items():
            start = time.perf_counter()
            loss = compute(K, y)
            middle = time.perf_counter()
            torch.autograd.grad(loss, K)
            samples[name]["forward"].append(middle - start)
            samples[name]["backward"].append(time.perf_counter() - middle)
    # The first turn warms up.
    return {
        name: {phase: statistics.median(times[1:]) for phase, times in phases.items()}
        for name, phases in samples.items()
    }


def main() -> None:
    """Time both forms and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = time_in_turns(read_losses(README.read_text()), arguments.seconds)
    facts = collect_metadata()
    cpu = re.sub(r"\((R|TM)\)|Processor", "", facts["cpu"]["model"]).split()
    machine = {
        "cpu": " ".join(cpu),
        "threads": arguments.threads,
        "torch": facts["torch"]["version"],
        "date": facts["date"],
    }
    RESULTS.write_text(json.dumps({"order": ORDER, "machine": machine, "seconds": found}, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
