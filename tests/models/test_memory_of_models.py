"""Memory: kernel matrices take one buffer forward and none backward; the criterion of a process takes two."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fresh_process import get_output

from lapgrad.models import GPRegression
from lapgrad.models.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern52,
    Periodic,
    Polynomial,
    White,
    _blocks,
)
from lapgrad_bench.bench.measure.memory import EVERY_BUFFER_MAPPED, can_measure_memory, measure_mapped_bytes

pytestmark = [
    pytest.mark.skipif(not can_measure_memory(), reason="this system does not tell peak memory"),
    pytest.mark.cpu,
]

N = 1000
MATRIX_BYTES = N * N * 8
#: Elements of a block, so that blocks are as small beside this matrix as they are beside large ones.
BLOCK = 1 << 14
#: Allowed in addition, in units of the matrix: temporaries of a few blocks.
SLACK = 0.25

KERNELS: dict[str, Callable[[], Kernel]] = {
    "RBF": RBF,
    "Matern52": Matern52,
    "Polynomial": lambda: Polynomial(3),
    "composite": lambda: RBF() * Periodic() + Constant() * Linear() + White(),
}


def measure() -> dict[str, dict[str, float]]:
    """Return peaks in units of the kernel matrix: forward, backward, diagonal, criterion with gradient."""
    _blocks._ELEMENTS["cpu"] = BLOCK
    X = torch.rand(N, 3, dtype=torch.float64)
    y = X.sum(1)
    return {name: _peaks(make(), X, y) for name, make in KERNELS.items()}


def _peaks(kernel: Kernel, X: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    parameters = list(kernel.parameters())
    forward = measure_mapped_bytes(lambda: kernel(X))
    backward = _peak_backward(kernel(X), parameters)
    diagonal = measure_mapped_bytes(lambda: kernel.diag(X))
    model = GPRegression(X, y, kernel, normalise=False)

    def criterion() -> Any:
        return torch.autograd.grad(model.loss(), list(model.parameters()))

    found = {
        "forward": forward,
        "backward": backward,
        "diagonal": diagonal,
        "criterion": measure_mapped_bytes(criterion),
    }
    return {phase: peak / MATRIX_BYTES for phase, peak in found.items()}


def _peak_backward(K: torch.Tensor, parameters: list[torch.nn.Parameter]) -> int:
    cotangent = torch.ones_like(K)
    return measure_mapped_bytes(lambda: torch.autograd.grad(K, parameters, cotangent, retain_graph=True))


#: Buffers of the size of the kernel matrix that are wanted at most.
BUFFERS = {"forward": 1, "backward": 0, "diagonal": 0, "criterion": 2}


@pytest.mark.slow
def test_peak(subtests: pytest.Subtests) -> None:
    """One test, so that one process measures all, whatever the number of test processes."""
    code = "import json; from models import test_memory_of_models as t; print(json.dumps(t.measure()))"
    measured: dict[str, dict[str, float]] = json.loads(get_output(code, **EVERY_BUFFER_MAPPED))
    assert measured.keys() == KERNELS.keys()
    for name, peaks in measured.items():
        for phase, buffers in BUFFERS.items():
            slack = 0.05 if phase == "diagonal" else SLACK
            with subtests.test(f"{name}, {phase}"):
                assert buffers - 0.05 <= peaks[phase] <= buffers + slack, f"{peaks[phase]:.2f} matrices"
