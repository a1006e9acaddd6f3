"""The speed and memory the operators have to reach, and how each figure is measured.

Three tables: one for a machine of few cores (2), one for many (16), one for a GPU. All speed-ups are against
torch in the same process, medians, forward and backward separately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

import lapgrad as lg
from lapgrad_bench.bench.measure.activity import Activity
from lapgrad_bench.bench.measure.memory import can_measure_memory, measure_peak_bytes
from lapgrad_bench.bench.measure.timing import CPU
from lapgrad_bench.bench.ops.cases import L_OF_GELQF, OPERATORS, Case, Operator, name_dtype
from lapgrad_bench.bench.ops.coexist import alternate
from lapgrad_bench.bench.ops.in_torch import compute_logdet_by_cholesky
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops.runner import Measurement, Phase, measure, measure_alone, use_threads

Machine = Literal["few-cores", "many-cores", "cuda"]
MANY_CORES = 8
"""The bars for many cores apply from this number of threads on."""


@dataclass
class BarMeasurer:
    """Measures cases for bars, and remembers the measurements that several bars need."""

    threads: int
    seconds: float
    device: torch.device = CPU
    measured: dict[tuple[Case, Phase], Measurement] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)

    def get_measurement(self, case: Case, phase: Phase) -> Measurement:
        """Return the measurement of one phase; measures it if that has not been done before."""
        case = dataclasses.replace(case, device=self.device)
        if (case, phase) not in self.measured:
            (self.measured[case, phase],) = measure(
                case, [phase], self.threads, self.seconds, activity=self.activity
            )
        return self.measured[case, phase]


@dataclass(frozen=True)
class Bar:
    """One figure that is to be reached.

    Attributes:
        what: what is measured.
        sense: whether the figure must be at least or at most `bound`.
        bound: the figure that is to be reached.
        value: measures the figure.
        unit: printed behind both figures.
        device: measures the same figure for the work of the GPU alone, if there is one.
    """

    what: str
    sense: Literal["≥", "≤"]
    bound: float
    value: Callable[[BarMeasurer], float]
    unit: str = "×"
    device: Callable[[BarMeasurer], float | None] = lambda bench: None

    def is_reached(self, figure: float) -> bool:
        """Return whether a figure reaches the bar."""
        return figure >= self.bound if self.sense == "≥" else figure <= self.bound


@dataclass(frozen=True)
class Verdict:
    """A bar and its figure; ``device`` is the figure for the GPU's work alone, without waits for the host."""

    bar: Bar
    figure: float
    device: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the bar was reached."""
        return self.bar.is_reached(self.figure)

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as results files store it."""
        bar = self.bar
        return {
            "what": bar.what,
            "wanted": bar.bound,
            "sense": bar.sense,
            "figure": self.figure,
            "unit": bar.unit,
            "passed": self.passed,
            "device": self.device,
        }


def list_bars(machine: Machine) -> list[Bar]:
    """Return the bars for one kind of machine.

    Example:
        >>> list_bars("few-cores")[0].what
        'potrf 128 float64 backward'
    """
    return list(
        {"few-cores": _list_few_core_bars, "many-cores": _list_many_core_bars, "cuda": _list_cuda_bars}[
            machine
        ]()
    )


def measure_bar(bar: Bar, bench: BarMeasurer) -> Verdict:
    """Measure one bar."""
    bench.activity.begin("", bar.what)
    with use_threads(bench.threads):
        return Verdict(bar, bar.value(bench), bar.device(bench))


_Bounds = tuple[float | None, float | None]
_FLOATS = (torch.float64, torch.float32)


def _list_few_core_bars() -> Iterator[Bar]:
    for n in (128, 256, 512):
        yield from _make_speedup_bars("potrf", n, (None, 3.0), (None, 2.5))
    yield from _make_speedup_bars("potrf", 1024, (None, 4.0), (None, 3.5))
    for n in (2048, 4096):
        yield from _make_speedup_bars("potrf", n, (None, 5.5), (None, 5.0))
    for n in (512, 1024, 2048, 4096):
        for dtype in _FLOATS:
            yield _make_backward_bar(Case(OPERATORS["potrf"], Shape(n, n), dtype), 2.0)
    for n in (64, 128, 256, 512, 1024, 2048, 4096):
        least = 1.3 if n == 1024 else 1.0
        yield from _make_speedup_bars("potrf", n, (least, None), (least, None))
    for batch in ("1000x8x8", "10000x4x4"):
        yield from _make_speedup_bars("potrf", batch, (6.0, 10.0), (6.0, 10.0))
    yield from _make_speedup_bars("potrf", "200x64x64", (2.0, 5.0), (2.0, 5.0))
    for n in (1024, 2048):
        yield from _make_speedup_bars("trsm", n, (1.1, 1.6), (1.5, 1.6))
    for name in ("trsm", "trmm"):
        yield from _make_speedup_bars(name, "1000x8x8", (3.0, 3.0), (3.0, 3.0))
    for n in (1024, 2048, 4096):
        yield from _make_speedup_bars("syrk", n, (1.6, 1.7), (1.6, 1.7))
        yield from _make_speedup_bars("trmm", n, (1.6, 1.5), (1.6, 1.5))
    yield from _list_positive_definite_bars()
    yield from _make_speedup_bars("gesvd", 1024, (1.0, 1.4), (1.0, 1.4))
    yield from _make_speedup_bars("gesvd", "1000x8x8", (6.0, 3.0), (6.0, 3.0))
    yield from _list_orthogonal_bars()
    for name in ("inverse", "det", "slogdet"):
        for dtype in _FLOATS:
            yield _make_speedup_bar(Case(OPERATORS[name], Shape(1024, 1024), dtype), "step", 1.0)
        yield from _make_speedup_bars(name, "1000x8x8", (4.0, None), (4.0, None))
        yield from _make_speedup_bars(name, "10000x4x4", (3.0, None), (3.0, None))
    for dtype in _FLOATS:
        one = Case(OPERATORS["potrf"], Shape(4, 4), dtype)
        yield _make_speedup_bar(one, "forward", 1.0)
        yield _make_speedup_bar(one, "step", 1.3)
    yield from _make_speedup_bars("syevd", 1024, (1.0, 1.3), (1.0, 1.3))
    yield from _make_speedup_bars("syevd", "1000x8x8", (5.0, None), (5.0, None))
    yield from _make_speedup_bars("syevd", "200x64x64", (1.8, None), (1.8, None))
    yield _make_memory_bar("forward with overwrite", 0.1, _prepare_overwriting_potrf)
    yield _make_memory_bar("backward", 1.1, _prepare_potrf_backward)
    what = "potrf and torch.mm in turns / each alone"
    yield Bar(what, "≤", 1.15, lambda bench: alternate(bench.seconds).ratio)


def _list_positive_definite_bars() -> Iterator[Bar]:
    yield from _make_speedup_bars("potri", 1024, (1.2, 2.0), (1.2, 2.0))
    yield from _make_speedup_bars("potri", "1000x8x8", (2.0, 2.0), (2.0, 2.0))
    logdet = OPERATORS["linalg.logdet_psd"]
    by_cholesky = dataclasses.replace(
        logdet,
        name=f"{logdet.name} against Cholesky",
        peer=compute_logdet_by_cholesky,
        peer_text="by cholesky(A)",
    )
    for dtype in _FLOATS:
        for operator, bound in (
            (logdet, 2.5),
            (by_cholesky, 2.5),
            (OPERATORS["linalg.solve_psd"], 1.0),
            (OPERATORS["linalg.inverse_psd"], 1.0),
        ):
            yield _make_speedup_bar(Case(operator, Shape(1024, 1024), dtype), "step", bound)
        for n in (2048, 4096):
            yield _make_speedup_bar(Case(OPERATORS["fused.mvn_nll"], Shape(n, n), dtype), "step", 3.5)
        small = Shape.parse("1000x8x8")
        for name in ("linalg.logdet_psd", "linalg.solve_psd", "linalg.inverse_psd", "fused.mvn_nll"):
            yield _make_speedup_bar(Case(OPERATORS[name], small, dtype), "step", 2.0)
    yield _make_memory_bar(
        "value and gradient with overwrite", 1.1, _prepare_overwriting_mvn_nll, "fused.mvn_nll"
    )
    # 32 series of 1000 steps, 4 states and 2 observations, against a loop over the steps.
    series = Shape(1000, 1000, (32,))
    yield _make_speedup_bar(Case(OPERATORS["fused.kalman_nll"], series, torch.float64), "step", 50.0)


def _list_orthogonal_bars() -> Iterator[Bar]:
    for shape in ("1024", "512x4096"):
        yield from _make_speedup_bars("gelqf", shape, (1.1, 1.7), (1.1, 1.7))
    yield from _make_speedup_bars(L_OF_GELQF, "512x4096", (1.7, 1.5), (1.7, 1.5))
    for batch in ("1000x8x8", "1000x4x16"):
        yield from _make_speedup_bars("gelqf", batch, (6.0, 4.0), (6.0, 4.0))


def _list_many_core_bars() -> Iterator[Bar]:
    for exponent in range(4, 14):
        n = 2**exponent
        float64, float32 = (4.5, 3.5) if n >= 4096 else (1.0, 1.0)
        yield from _make_speedup_bars("potrf", n, (None, float64), (None, float32))
    for batch in ("10000x8x8", "200x64x64"):
        yield from _make_speedup_bars("potrf", batch, (10.0, 10.0), (10.0, 10.0))
        for dtype in _FLOATS:
            for phase in ("forward", "backward"):
                yield _make_scaling_bar(Case(OPERATORS["potrf"], Shape.parse(batch), dtype), phase, 8.0)


def _list_cuda_bars() -> Iterator[Bar]:
    for n, bound in ((16384, 5.0), (8192, 4.0), (4096, 2.5), (2048, 2.0), (1024, 1.5)):
        yield from _make_speedup_bars("potrf", n, (None, bound), (None, bound))
    for batch in ("10000x16x16", "1000x64x64"):
        yield from _make_speedup_bars("potrf", batch, (None, 4.0), (None, 4.0))
    yield from _make_speedup_bars("trsm", 2048, (2.0, None), (2.0, None))
    for shape, forward in (("512x8192", 3.5), ("2048x16384", 3.0), ("2048", 2.5)):
        yield from _make_speedup_bars("gelqf", shape, (forward, 1.3), (forward, 1.3))
    for batch, forward in (("10000x4x4", 300.0), ("10000x16x16", 300.0), ("1000x64x64", 20.0)):
        yield from _make_speedup_bars("gelqf", batch, (forward, None), (forward, None))
    for name, bounds in (("syevd", (3.0, 200.0)), ("gesvd", (5.0, 100.0))):
        for batch, forward in zip(("10000x16x16", "1000x64x64"), bounds, strict=True):
            yield from _make_speedup_bars(name, batch, (forward, None), (forward, None))
    yield from _make_speedup_bars("gesvd", 2048, (4.0, None), (4.0, None))
    for dtype in _FLOATS:
        yield _make_speedup_bar(Case(OPERATORS["fused.mvn_nll"], Shape(16384, 16384), dtype), "step", 3.5)


def _make_speedup_bars(
    name: str | Operator, shape: int | str, float64: _Bounds, float32: _Bounds
) -> Iterator[Bar]:
    """Yield bars on the speed-up of (forward, backward) for both dtypes; None: no bar."""
    operator = OPERATORS[name] if isinstance(name, str) else name
    for dtype, bounds in zip(_FLOATS, (float64, float32), strict=True):
        case = Case(operator, Shape.parse(str(shape)), dtype)
        phases: tuple[Phase, Phase] = ("forward", "backward")
        for phase, bound in zip(phases, bounds, strict=True):
            if bound is not None:
                yield _make_speedup_bar(case, phase, bound)


def _make_speedup_bar(case: Case, phase: Phase, bound: float) -> Bar:
    return Bar(
        f"{case} {phase}",
        "≥",
        bound,
        lambda bench: bench.get_measurement(case, phase).ratio,
        device=lambda bench: bench.get_measurement(case, phase).device_ratio,
    )


def _make_backward_bar(case: Case, bound: float) -> Bar:
    def value(bench: BarMeasurer) -> float:
        backward, forward = (
            bench.get_measurement(case, phase).ours.median for phase in ("backward", "forward")
        )
        return backward / forward

    return Bar(f"{case} backward / forward", "≤", bound, value)


def _make_scaling_bar(case: Case, phase: Phase, bound: float) -> Bar:
    def value(bench: BarMeasurer) -> float:
        one, every = (
            measure_alone(case, phase, threads, bench.seconds, bench.activity)
            for threads in (1, bench.threads)
        )
        return one.median / every.median

    return Bar(f"{case} {phase}, 1 thread / all", "≥", bound, value)


# Memory is counted in buffers of n² at n = 4096 float64 (134 MB). The tenth above the whole number is for the
# packing buffers of the BLAS.

_MEMORY_N = 4096


def _make_memory_bar(
    phase: str, bound: float, prepare: Callable[[torch.Tensor], Callable[[], Any]], name: str = "potrf"
) -> Bar:
    def value(bench: BarMeasurer) -> float:
        if not can_measure_memory():
            return float("nan")
        generator = torch.Generator().manual_seed(0)
        (A,) = OPERATORS["potrf"].inputs(Shape(_MEMORY_N, _MEMORY_N), torch.float64, generator)
        return measure_peak_bytes(prepare(A)) / (A.numel() * A.itemsize)

    what = f"{name} {_MEMORY_N} {name_dtype(torch.float64)} {phase}, extra peak memory"
    return Bar(what, "≤", bound, value, " n²")


def _prepare_overwriting_potrf(A: torch.Tensor) -> Callable[[], Any]:
    work = A.clone()

    def call() -> torch.Tensor:
        work.copy_(A)
        return lg.potrf(work, overwrite=True)

    return call


def _prepare_potrf_backward(A: torch.Tensor) -> Callable[[], Any]:
    A.requires_grad_()
    L, cotangent = lg.potrf(A), torch.ones_like(A)
    return lambda: torch.autograd.grad(L, A, cotangent, retain_graph=True)


def _prepare_overwriting_mvn_nll(A: torch.Tensor) -> Callable[[], Any]:
    """Return a call in which the factor overwrites A, so that only the gradient is allocated."""
    leaf, y = A.requires_grad_(), torch.ones_like(A[:, :1])
    room = torch.empty_like(A)

    def call() -> Any:
        work = room.detach().copy_(
            leaf
        )  # The copy is recorded by autograd, so that the gradient reaches the leaf without another buffer.
        return torch.autograd.grad(lg.fused.mvn_nll(work, y, overwrite=True), leaf)

    return call
