"""Times forward and backward of cases, lapgrad and torch in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lapgrad.bench.cases import Case, dtype_name
from lapgrad.bench.timing import Thunk, Timing, interleaved

Phase = Literal["forward", "backward", "step"]
"""forward: no gradient is asked for. backward: all gradients, on a graph that is kept. step: both, with a new
graph each time."""

PHASES: tuple[Phase, ...] = get_args(Phase)

_TOLERANCE = 50.0
"""Units of n·eps by which lapgrad and torch may differ, relative to the largest entry: both round."""


class DisagreementError(AssertionError):
    """lapgrad and torch gave different results: their times cannot be compared."""


@dataclass(frozen=True)
class Measurement:
    """One phase of one case at one number of threads."""

    case: Case
    phase: Phase
    threads: int
    ours: Timing
    peer: Timing

    @property
    def ratio(self) -> float:
        """How many times faster than torch."""
        return self.peer.median / self.ours.median

    def rate(self, timing: Timing) -> float:
        """Gflop/s, or GB/s for operators that only move elements."""
        amount = self.case.work(self.phase)
        if self.case.operator.unit == "element":
            amount *= self.case.dtype.itemsize
        return amount / timing.median / 1e9

    def as_dict(self) -> dict[str, Any]:
        """As stored in JSON: times in seconds."""
        return {
            "operator": self.case.operator.name,
            "peer": self.case.operator.peer_text,
            "shape": [*self.case.shape.batch, self.case.shape.n, self.case.shape.m],
            "dtype": dtype_name(self.case.dtype),
            "device": self.case.device.type,
            "phase": self.phase,
            "threads": self.threads,
            "lapgrad": vars(self.ours),
            "torch": vars(self.peer),
            "ratio": self.ratio,
            "work": self.case.work(self.phase),
            "unit": self.case.operator.unit,
        }


def measure(case: Case, phases: Sequence[Phase], threads: int, seconds: float) -> list[Measurement]:
    """Checks that lapgrad and torch agree on the case, then times each phase for about `seconds`."""
    with thread_count(threads):
        ours, peer = _prepare(case)
        _compare(case, ours, peer)
        found = []
        for phase in phases:
            timings = interleaved(
                [ours.thunk(phase), peer.thunk(phase)], seconds, least_rounds=3, device=case.device
            )
            found.append(Measurement(case, phase, threads, *timings))
        return found


def measure_alone(case: Case, phase: Phase, threads: int, seconds: float) -> Timing:
    """Times lapgrad without torch in between, whose calls would let idle threads of the pool fall asleep."""
    with thread_count(threads):
        ours, _ = _prepare(case)
        (timing,) = interleaved([ours.thunk(phase)], seconds, device=case.device)
        return timing


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """torch.set_num_threads for the length of a with block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Side:
    """One of the two sides (lapgrad, torch) of a case, with a graph ready for backward."""

    def __init__(
        self, function: Any, inputs: Sequence[Tensor], weights: Sequence[Tensor], signs: bool
    ) -> None:
        self.function = function
        self.plain = tuple(inputs)
        self.tracked = tuple(x.detach().requires_grad_() for x in inputs)
        self.results = as_tuple(function(*self.tracked))
        # Where the sign of a row is free, a cotangent that changes with it gives the same gradient for both.
        self.cotangents = tuple(
            weight * result.detach() if signs else weight
            for weight, result in zip(weights, self.results, strict=True)
        )

    def thunk(self, phase: Phase) -> Thunk:
        """The function to be timed."""
        return {"forward": self._forward, "backward": self._backward, "step": self._step}[phase]()

    def gradients(self) -> tuple[Tensor, ...]:
        """Gradients of all inputs."""
        gradients: tuple[Tensor, ...] = self._backward()()
        return gradients

    def _forward(self) -> Thunk:
        function, inputs = self.function, self.plain
        return lambda: function(*inputs)

    def _backward(self) -> Thunk:
        results, inputs, cotangents, grad = self.results, self.tracked, self.cotangents, torch.autograd.grad
        return lambda: grad(results, inputs, cotangents, retain_graph=True)

    def _step(self) -> Thunk:
        function, inputs, cotangents, grad = self.function, self.tracked, self.cotangents, torch.autograd.grad
        return lambda: grad(function(*inputs), inputs, cotangents)


def _prepare(case: Case) -> tuple[Side, Side]:
    generator = torch.Generator(case.device).manual_seed(0)
    inputs = case.operator.inputs(case.shape, case.dtype, generator)
    operator = case.operator
    with torch.no_grad():
        results = as_tuple(operator.peer(*inputs))
    weights = [
        torch.randn(result.shape, dtype=case.dtype, generator=generator, device=case.device)
        for result in results
    ]
    return (
        Side(operator.ours, inputs, weights, operator.signs),
        Side(operator.peer, inputs, weights, operator.signs),
    )


def as_tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results of an operator, one or several."""
    return (results,) if isinstance(results, Tensor) else tuple(results)


def _compare(case: Case, ours: Side, peer: Side) -> None:
    pairs = {}
    for i, (mine, theirs) in enumerate(zip(ours.results, peer.results, strict=True)):
        mine, theirs = mine.detach(), theirs.detach()
        pairs[f"result {i}"] = (mine.abs(), theirs.abs()) if case.operator.signs else (mine, theirs)
    for i, (mine, theirs) in enumerate(zip(ours.gradients(), peer.gradients(), strict=True)):
        if i in case.operator.lower:
            mine, theirs = mine.tril(), theirs.tril()
        if i in case.operator.symmetric:
            mine, theirs = (0.5 * (gradient + gradient.mT) for gradient in (mine, theirs))
        pairs[f"gradient {i}"] = (mine, theirs)
    allowed = _TOLERANCE * case.shape.n * torch.finfo(case.dtype).eps
    for what, (mine, theirs) in pairs.items():
        difference = float((mine - theirs).abs().max() / theirs.abs().max())
        if not difference <= allowed:
            raise DisagreementError(
                f"{case}: {what} differs from torch by {difference:.1e} (relative to its largest entry), "
                f"allowed {allowed:.1e}"
            )
