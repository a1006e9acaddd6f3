"""lapgrad and torch calls in turns.

Two thread pools in one process spin against each other: a call on the one next to a call on the other then
takes several times as long as either alone. lapgrad runs on torch's pool, and this measures that it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import lapgrad as lg
from lapgrad_bench.bench.measure.timing import time_in_turns
from lapgrad_bench.bench.ops.cases import OPERATORS
from lapgrad_bench.bench.ops.inputs import Shape

_CALL_SECONDS = 4e-3
_CALLS_PER_BLOCK = 25
"""A block of one function alone lasts 0.1 s: long enough for idle threads of another pool to go to sleep."""


@dataclass(frozen=True)
class Alternation:
    """Seconds per call: potrf alone, torch.mm alone, and one after the other."""

    potrf_n: int
    mm_n: int
    potrf: float
    mm: float
    pair: float

    @property
    def ratio(self) -> float:
        """Time of a pair over the sum of each alone: 1 when they do not disturb each other."""
        return self.pair / (self.potrf + self.mm)


def alternate(seconds: float, dtype: torch.dtype = torch.float64) -> Alternation:
    """Measures lapgrad.potrf and torch.mm, each sized to about 4 ms, alone and in turns."""
    with torch.no_grad():
        potrf_n, potrf = _sized(lambda n: _potrf_of(n, dtype))
        mm_n, mm = _sized(lambda n: _mm_of(n, dtype))

        def potrf_block() -> None:
            for _ in range(_CALLS_PER_BLOCK):
                potrf()

        def mm_block() -> None:
            for _ in range(_CALLS_PER_BLOCK):
                mm()

        def pair_block() -> None:
            for _ in range(_CALLS_PER_BLOCK):
                potrf()
                mm()

        blocks = time_in_turns([potrf_block, mm_block, pair_block], seconds, least_rounds=5)
    each = [timing.median / _CALLS_PER_BLOCK for timing in blocks]
    return Alternation(potrf_n, mm_n, *each)


def _potrf_of(n: int, dtype: torch.dtype) -> Callable[[], Any]:
    (A,) = OPERATORS["potrf"].inputs(Shape(n, n), dtype, torch.Generator().manual_seed(0))
    return lambda: lg.potrf(A)


def _mm_of(n: int, dtype: torch.dtype) -> Callable[[], Any]:
    A = torch.ones(n, n, dtype=dtype)
    return lambda: torch.mm(A, A)


def _sized(make: Callable[[int], Callable[[], Any]]) -> tuple[int, Callable[[], Any]]:
    """The size, in steps of an eighth, whose call first takes 4 ms."""
    n = 128
    while True:
        function = make(n)
        (timing,) = time_in_turns([function], 0.02, least_rounds=5)
        if timing.median >= _CALL_SECONDS:
            return n, function
        n += max(16, n // 8)
