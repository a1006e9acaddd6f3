"""Value and gradient of a Gaussian process criterion: lapgrad and torch.linalg in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lapgrad.demo.gp import LAPGRAD, TORCH, Algebra, CarbonModel, criterion


@dataclass(frozen=True)
class Comparison:
    """Median seconds for value and gradient."""

    what: str
    ours: float
    peer: float

    @property
    def faster(self) -> float:
        """How many times faster than torch.linalg."""
        return self.peer / self.ours


def compare_carbon(model: CarbonModel, seconds: float) -> Comparison:
    """The model of the demonstration."""
    return _compare(f"this model, n = {len(model.y)}", model.value, model.parameters(), seconds)


def compare_synthetic(n: int, dtype: torch.dtype, seed: int, seconds: float) -> Comparison:
    """The paper's model: one Gaussian kernel with a length per input, here 8 of them, on random data.

    k(x, x') = a exp(−½ ‖x/l − x'/l‖²), the squared distances from the Gram matrix that syrk gives.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 8, dtype=dtype, generator=generator)
    y = torch.randn(n, dtype=dtype, generator=generator)
    logs = [torch.zeros(k, dtype=dtype, requires_grad=True) for k in (8, 1, 1)]

    def value(algebra: Algebra) -> Tensor:
        length, variance, noise = (log.exp() for log in logs)
        G = algebra.syrk(X / length)
        squared_norms = G.diagonal()
        squared = squared_norms[:, None] + squared_norms - 2 * G
        A = variance * torch.exp(-0.5 * squared) + noise * torch.eye(n, dtype=dtype)
        return criterion(A, y, algebra)

    return _compare(f"random data, 8 inputs, n = {n}", value, logs, seconds)


def _compare(
    what: str, value: Callable[[Algebra], Tensor], leaves: list[Tensor], seconds: float
) -> Comparison:
    def value_and_gradient(algebra: Algebra) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value(algebra), leaves)

    sides = [partial(value_and_gradient, algebra) for algebra in (LAPGRAD, TORCH)]
    ours, peer = _time_in_turns(sides, seconds)
    return Comparison(what, ours, peer)


def _time_in_turns(functions: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Returns the median time of each function in seconds. They take turns, to meet the same noise."""
    for function in functions:
        function()
    samples: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(samples[0]) < 5 or time.perf_counter() < end:
        for function, times in zip(functions, samples, strict=True):
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in samples]
