"""Times the forward and backward pass of a case, with lapgrad, torch and other libraries in turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lapgrad_bench.bench.measure.activity import Activity
from lapgrad_bench.bench.measure.memory import can_measure_memory, measure_peak_bytes
from lapgrad_bench.bench.measure.timing import (
    Sampler,
    Thunk,
    Timing,
    make_sampler,
    measure_device_work,
    take_turns,
)
from lapgrad_bench.bench.ops import gemm, peer_cases
from lapgrad_bench.bench.ops.agreement import DisagreementError, Values, compare
from lapgrad_bench.bench.ops.cases import Case, name_dtype
from lapgrad_bench.bench.peers.client import PeerError, Peers

__all__ = ["PHASES", "DisagreementError", "Measurement", "Phase", "Side", "measure", "measure_alone"]

Phase = Literal["forward", "backward", "step"]
"""forward: without gradients. backward: all gradients, on a graph that is kept. step: both, with a new graph
in each call."""

PHASES: tuple[Phase, ...] = get_args(Phase)

_LEAST_BYTES_OF_OPERANDS = 2**21
"""Peak memory is measured if operands have this many bytes: it is exact to a few hundred kB only."""

_SLOWEST_RATE = 1e9
"""Flops per second. A call may take the time of its flops at this rate beyond the limit of all calls."""


@dataclass(frozen=True)
class Measurement:
    """The times of one phase of a case with one number of threads.

    Attributes:
        case, phase, threads: what was timed.
        ours, peer: lapgrad and torch; None where torch was left out.
        others: further libraries by name.
        gemm_rate: flop/s of torch.mm in between; None where it was not measured.
        moved: bytes of inputs, results, cotangents and gradients, each counted once.
        extra_bytes: peak memory of a call by library, where it was measured.
        device: seconds that a GPU works on a call, by library; empty on a CPU.
    """

    case: Case
    phase: Phase
    threads: int
    ours: Timing
    peer: Timing | None
    others: dict[str, Timing] = field(default_factory=dict)
    gemm_rate: float | None = None
    moved: float | None = None
    extra_bytes: dict[str, int | None] = field(default_factory=dict)
    device: dict[str, Timing] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times faster lapgrad is than torch; NaN where torch was left out."""
        return float("nan") if self.peer is None else self.peer.median / self.ours.median

    @property
    def device_ratio(self) -> float | None:
        """How many times longer the GPU works for torch; None on a CPU and where torch was left out."""
        if "torch" not in self.device:
            return None
        return self.device["torch"].median / self.device["lapgrad"].median

    def compute_rate(self, timing: Timing) -> float:
        """Return the rate in Gflop/s, or in GB/s for operators that only move elements."""
        amount = self.case.count_operations(self.phase)
        if self.case.operator.unit == "element":
            amount *= self.case.dtype.itemsize
        return amount / timing.median / 1e9

    def make_rows(self) -> list[dict[str, Any]]:
        """Return one row per library, as results files store them, with times in seconds."""
        return [self._make_row(name, timing) for name, timing in self._list_timings().items()]

    def _list_timings(self) -> dict[str, Timing]:
        torch = {} if self.peer is None else {"torch": self.peer}
        return {"lapgrad": self.ours, **torch, **self.others}

    def _make_row(self, library: str, timing: Timing) -> dict[str, Any]:
        work = self.case.count_operations(self.phase)
        flops = work if self.case.operator.unit == "flop" else None
        fraction = None if flops is None or not self.gemm_rate else flops / timing.median / self.gemm_rate
        return {
            "operator": self.case.operator.name,
            "shape": [*self.case.shape.batch, self.case.shape.n, self.case.shape.m],
            "dtype": name_dtype(self.case.dtype),
            "device": self.case.device.type,
            "threads": self.threads,
            "phase": self.phase,
            "library": library,
            "median_s": timing.median,
            "low_s": timing.low,
            "high_s": timing.high,
            "samples": timing.samples,
            "flops": flops,
            "bytes": self.moved if flops is not None else work * self.case.dtype.itemsize,
            "gemm_fraction": fraction,
            "gemm_rate": self.gemm_rate,
            "extra_bytes": self.extra_bytes.get(library),
            "device_s": self.device[library].median if library in self.device else None,
        }


def measure(
    case: Case,
    phases: Sequence[Phase],
    threads: int,
    seconds: float,
    *,
    peers: Peers | None = None,
    against_gemm: bool = False,
    memory: bool = False,
    with_torch: bool = True,
    activity: Activity | None = None,
) -> list[Measurement]:
    """Check that all libraries agree with torch on the case, then time each phase.

    Args:
        case: what is timed.
        phases: forward, backward, step.
        threads: threads of every library.
        seconds: how long a phase is timed with two libraries, about; more libraries take longer.
        peers: other libraries, in processes of their own.
        against_gemm: time torch.mm in between.
        memory: measure peak memory as well, where operands are large enough.
        with_torch: time torch as well. Without it, peers are compared with lapgrad.
        activity: the record of the call that is being made.

    Raises:
        DisagreementError: lapgrad and torch do not agree.
    """
    with use_threads(threads):
        pair = _Pair(case, with_torch, activity or Activity())
        ready_peers = pair.prepare_peers(phases, peers, threads) if peers else []
        found = []
        for phase in phases:
            while True:
                taking_part = [ready for ready in ready_peers if phase in ready.phases]
                try:
                    found.append(pair.measure(phase, taking_part, threads, seconds, against_gemm, memory))
                    break
                except PeerError as error:  # The phase is measured again without this peer.
                    assert peers is not None
                    peers.record_failure(error.library, str(case), str(error))
                    ready_peers = [ready for ready in ready_peers if ready.peer.library != error.library]
        pair.activity.begin_unlimited("end of the case")
        for ready in ready_peers:
            ready.release()
        return found


class _Pair:
    """lapgrad and torch prepared for one case, on which they agree; lapgrad alone if torch is left out."""

    def __init__(self, case: Case, with_torch: bool, activity: Activity) -> None:
        self.case, self.activity = case, activity
        self.extra_seconds = _estimate_extra_seconds(case)
        self.sides, self.weights = _prepare_sides(
            case, ["lapgrad", "torch"] if with_torch else ["lapgrad"], self.begin
        )
        self.ours = self.sides["lapgrad"]
        values = [self._collect_values(library) for library in self.sides]
        self.begin("", "comparison of results")
        compare(case, values[0], values[-1])

    def begin(self, library: str, what: str) -> None:
        """Record the call that comes next, with the time that a case of this size may take."""
        self.activity.begin(library, what, self.extra_seconds)

    def prepare_peers(self, phases: Sequence[Phase], peers: Peers, threads: int) -> list[peer_cases.PeerCase]:
        """Return the peers that have the case and agree with torch (with lapgrad if torch is left out)."""
        *_, library = self.sides
        reference = self._collect_values(library).on_cpu()
        self.activity.begin_unlimited("preparation of peers")
        inputs = self.ours.plain
        return peer_cases.prepare(self.case, phases, peers, threads, inputs, self.weights, reference, library)

    def _collect_values(self, library: str) -> Values:
        self.begin(library, "its first gradient")
        return self.sides[library].values()

    def measure(
        self,
        phase: Phase,
        ready_peers: Sequence[peer_cases.PeerCase],
        threads: int,
        seconds: float,
        against_gemm: bool,
        memory: bool,
    ) -> Measurement:
        """Time one phase, with all libraries in turns."""
        case = self.case
        thunks = {library: side.get_thunk(phase) for library, side in self.sides.items()}
        warm = bool(ready_peers)
        samplers: dict[str, Sampler] = {
            name: self._watch_sampler(name, phase, make_sampler(thunk, case.device, warm=warm))
            for name, thunk in thunks.items()
        }
        for ready in ready_peers:
            sample = functools.partial(ready.sample, phase)
            samplers[ready.peer.library] = self.activity.pause(sample, "a peer's turn")
        budget = seconds * len(samplers) / 2.0
        rare = 0
        if against_gemm:
            product = make_sampler(gemm.make_product(case.dtype, case.device, threads), case.device)
            samplers["gemm"] = self._watch_sampler("torch.mm", "beside the case", product)
            rare = 1
        timings = dict(
            zip(samplers, take_turns(list(samplers.values()), budget, least_rounds=3, rare=rare), strict=True)
        )
        yardstick = timings.pop("gemm", None)
        extra: dict[str, int | None] = {}
        if memory and self._count_operand_bytes() >= _LEAST_BYTES_OF_OPERANDS:
            if can_measure_memory(case.device):
                for name, thunk in thunks.items():
                    self.begin(name, f"{phase}, for its memory")
                    extra[name] = measure_peak_bytes(thunk, case.device, called_before=True)
            self.activity.begin_unlimited("memory of peers")
            extra |= {ready.peer.library: ready.extra_bytes(phase) for ready in ready_peers}
        device: dict[str, Timing] = {}
        if case.device.type == "cuda":
            for name, thunk in thunks.items():
                self.begin(name, f"{phase}, for the GPU's work")
                device[name] = measure_device_work(thunk)
        return Measurement(
            case,
            phase,
            threads,
            timings.pop("lapgrad"),
            timings.pop("torch", None),
            timings,
            gemm.count_flops(case.device, threads) / yardstick.median if yardstick else None,
            self._count_moved_bytes(phase),
            extra,
            device,
        )

    def _watch_sampler(self, library: str, what: str, sample: Sampler) -> Sampler:
        return self.activity.watch(sample, library, what, self.extra_seconds)

    def _count_operand_bytes(self) -> int:
        return sum(x.nbytes for x in self.ours.plain)

    def _count_moved_bytes(self, phase: Phase) -> float:
        """Return the bytes that a phase reads or writes: backward reads inputs, results and cotangents."""
        once = float(self._count_operand_bytes() + sum(result.nbytes for result in self.ours.results))
        return once * {"forward": 1.0, "backward": 2.0, "step": 3.0}[phase]


def measure_alone(
    case: Case, phase: Phase, threads: int, seconds: float, activity: Activity | None = None
) -> Timing:
    """Time lapgrad alone: between its calls torch would let idle threads of the pool fall asleep."""
    told, extra = activity or Activity(), _estimate_extra_seconds(case)
    with use_threads(threads):
        sides, _ = _prepare_sides(case, ["lapgrad"], lambda library, what: told.begin(library, what, extra))
        sample = make_sampler(sides["lapgrad"].get_thunk(phase), case.device)
        (timing,) = take_turns([told.watch(sample, "lapgrad", phase, extra)], seconds)
        return timing


def _estimate_extra_seconds(case: Case) -> float:
    """Return the whole seconds that a call of a large case may take beyond the limit of all calls."""
    return float(round(case.count_operations("step") / _SLOWEST_RATE))


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Set the number of torch's threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Side:
    """One library (lapgrad or torch) prepared for a case, with a graph for the backward pass."""

    def __init__(
        self, function: Any, inputs: Sequence[Tensor], weights: Sequence[Tensor], signs: bool
    ) -> None:
        self.function = function
        self.plain = tuple(inputs)
        self.tracked = tuple(x.detach().requires_grad_() for x in inputs)
        self.results = to_tuple(function(*self.tracked))
        # Where the sign of a row is free, a cotangent that changes sign with the row gives the same gradient.
        self.cotangents = tuple(
            weight * result.detach() if signs else weight
            for weight, result in zip(weights, self.results, strict=True)
        )

    def get_thunk(self, phase: Phase) -> Thunk:
        """Return the function of a phase that is timed."""
        return {"forward": self._forward, "backward": self._backward, "step": self._step}[phase]()

    def values(self) -> Values:
        """Return results, and gradients for all inputs."""
        return Values([result.detach() for result in self.results], self._backward()())

    def _forward(self) -> Thunk:
        function, inputs = self.function, self.plain
        return lambda: function(*inputs)

    def _backward(self) -> Thunk:
        results, inputs, cotangents, grad = self.results, self.tracked, self.cotangents, torch.autograd.grad
        return lambda: grad(results, inputs, cotangents, retain_graph=True)

    def _step(self) -> Thunk:
        function, inputs, cotangents, grad = self.function, self.tracked, self.cotangents, torch.autograd.grad
        return lambda: grad(function(*inputs), inputs, cotangents)


def _prepare_sides(
    case: Case, libraries: Sequence[str], begin: Callable[[str, str], None]
) -> tuple[dict[str, Side], list[Tensor]]:
    """Return the sides of a case by library, and the weights of its cotangents; `begin` records calls."""
    begin("", "preparation of inputs")
    operator = case.operator
    generator = torch.Generator(case.device).manual_seed(0)
    inputs = operator.inputs(case.shape, case.dtype, generator)
    functions = {"lapgrad": operator.ours, "torch": operator.peer}
    begin(libraries[-1], "its first call")
    with torch.no_grad():
        results = to_tuple(functions[libraries[-1]](*inputs))
    weights = [
        torch.randn(result.shape, dtype=case.dtype, generator=generator, device=case.device)
        for result in results
    ]
    sides = {}
    for library in libraries:
        begin(library, "its first call")
        sides[library] = Side(functions[library], inputs, weights, operator.signs)
    return sides, weights


def to_tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the results of an operator, one or several, as a tuple."""
    return (results,) if isinstance(results, Tensor) else tuple(results)
