"""Measures whether calls of lapgrad and torch in turns slow each other down.

Idle threads of a thread pool spin for a while. With two pools in one process, a call on one pool right after
a call on the other takes several times as long as alone. lapgrad runs on torch's pool; this checks it.
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
"""A block of calls of one function lasts 0.1 s, in which idle threads of another pool fall asleep."""


@dataclass(frozen=True)
class Alternation:
    """Seconds per call of potrf alone, of torch.mm alone, and of a pair of both; and their sizes."""

    potrf_n: int
    mm_n: int
    potrf: float
    mm: float
    pair: float

    @property
    def ratio(self) -> float:
        """Time of a pair over the sum of the times alone: 1 if they do not disturb each other."""
        return self.pair / (self.potrf + self.mm)


def alternate(seconds: float) -> Alternation:
    """Time lapgrad.potrf and torch.mm, at sizes where each takes about 4 ms, alone and in turns."""
    with torch.no_grad():
        potrf_n, potrf = _find_size(_prepare_potrf)
        mm_n, mm = _find_size(_prepare_mm)

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


def _prepare_potrf(n: int) -> Callable[[], Any]:
    (A,) = OPERATORS["potrf"].inputs(Shape(n, n), torch.float64, torch.Generator().manual_seed(0))
    return lambda: lg.potrf(A)


def _prepare_mm(n: int) -> Callable[[], Any]:
    A = torch.ones(n, n, dtype=torch.float64)
    return lambda: torch.mm(A, A)


def _find_size(make: Callable[[int], Callable[[], Any]]) -> tuple[int, Callable[[], Any]]:
    """Return the first size whose call takes 4 ms, and the call; sizes grow by an eighth."""
    n = 128
    while True:
        function = make(n)
        (timing,) = time_in_turns([function], 0.02, least_rounds=5)
        if timing.median >= _CALL_SECONDS:
            return n, function
        n += max(16, n // 8)
