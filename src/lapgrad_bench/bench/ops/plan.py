"""Chooses the cases of a run: those of the options, the quick selection, or those of an earlier file."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lapgrad_bench.bench.ops.cases import OPERATORS, Case, name_dtype
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops.runner import PHASES, Phase
from lapgrad_bench.bench.ops.tables import CaseKey, make_case_key
from lapgrad_bench.common.progress import format_duration
from lapgrad_bench.common.results import Results, Row

DTYPES = {"float64": torch.float64, "float32": torch.float32}
SIZES = "64,256,1024,2048"
BATCHES = "1000x8x8,10000x4x4,200x64x64"
SECONDS = 1.0

# The quick selection: several sizes of the operators that are plotted, and one of every other, in float64.
_QUICK_SIZES = dict.fromkeys(("potrf", "trsm", "syrk", "gelqf", "syevd"), "64,128,256,512,1024")
_QUICK_SIZES["gesvd"] = "64,128,256,512"
_QUICK_BATCHES = "10000x4x4,1000x8x8,200x64x64"
_QUICK_OTHER_SIZES, _QUICK_OTHER_BATCHES = "256", "1000x8x8"
_QUICK_SECONDS = 0.05

QUICK_BUDGET = 140.0
"""Seconds after which --quick starts no further case, for each library that lapgrad is compared with."""

_QUICK_PATIENCE = 20.0
"""Seconds after which a call that has not returned is given up where there is a budget."""

_OVERHEAD = 1.6
"""The time of a case over that of its timing, about: inputs, first calls, comparison of results, torch.mm."""

_DEFAULT_PHASES: list[Phase] = ["forward", "backward"]


@dataclass(frozen=True)
class Item:
    """A case with a number of threads, and the phases that are timed."""

    case: Case
    threads: int
    phases: tuple[Phase, ...]

    @property
    def key(self) -> CaseKey:
        """The key of its rows in the results."""
        shape = self.case.shape
        sizes = (*shape.batch, shape.n, shape.m)
        name, dtype = self.case.operator.name, name_dtype(self.case.dtype)
        return name, sizes, dtype, self.case.device.type, self.threads

    def select_phase(self, phase: str) -> Item:
        """Return the same case with one phase."""
        return Item(self.case, self.threads, tuple(known for known in self.phases if known == phase))

    def as_request(self) -> dict[str, Any]:
        """Return the item in values that JSON knows, for a request to the measuring process."""
        name, sizes, dtype, device, threads = self.key
        case = {"operator": name, "shape": list(sizes), "dtype": dtype, "device": device}
        return {**case, "threads": threads, "phases": list(self.phases)}

    @classmethod
    def from_request(cls, request: dict[str, Any]) -> Item:
        """Return the item that `as_request` has described."""
        return cls(_parse_case(request), request["threads"], tuple(request["phases"]))

    def __str__(self) -> str:
        return f"{self.case}, {self.threads} threads"


@dataclass(frozen=True)
class Plan:
    """The cases of a run.

    Attributes:
        items: the cases, in the order in which they are measured.
        seconds: how long each phase of a case is timed.
        options: what was asked for. It is stored, and --resume compares it.
    """

    items: list[Item]
    seconds: float
    options: dict[str, Any]


def make_plan(arguments: argparse.Namespace, earlier: Results | None) -> Plan:
    """Return the plan for a command line; without options for cases it has those of the earlier file."""
    options = {
        "operators": arguments.ops,
        "sizes": _format_all(arguments.sizes),
        "batches": _format_all(arguments.batches),
        "dtypes": _format_all(arguments.dtypes),
        "phases": arguments.phases,
        "threads": arguments.threads or [torch.get_num_threads()],
        "device": arguments.device,
        "seconds": arguments.seconds or choose_seconds(arguments.quick),
        "quick": arguments.quick,
        "peers": [str(spec) for spec in arguments.peer],
    }
    choices = ("ops", "sizes", "batches", "dtypes", "phases", "threads")
    asked = arguments.quick or any(getattr(arguments, name) is not None for name in choices)
    if earlier is not None and not asked:
        items = _list_items(earlier, arguments.device)
        budget = arguments.seconds or earlier.options.get("seconds", SECONDS)
        return Plan(items, budget, {**options, "seconds": budget, "cases_of": str(arguments.compare)})
    items = [
        Item(
            Case(OPERATORS[name], shape, dtype, torch.device(arguments.device)),
            threads,
            tuple(arguments.phases or _DEFAULT_PHASES),
        )
        for name in arguments.ops or OPERATORS
        for shape in _choose_shapes(arguments, name)
        for dtype in arguments.dtypes or _choose_dtypes(arguments, name)
        for threads in options["threads"]
    ]
    return Plan(items, options["seconds"], options)


class Budget:
    """How long a run may take; the time counts from now on.

    Args:
        seconds: After these no case is started; infinity: no limit.
        patience: After this many seconds a call is given up; 0: never. With a budget it is at most 20.
    """

    def __init__(self, seconds: float, patience: float) -> None:
        self.seconds = seconds
        self.is_limited = math.isfinite(seconds)
        self.patience = min(patience, _QUICK_PATIENCE) if self.is_limited else patience
        self._began = time.monotonic()

    def compute_part_spent(self) -> float:
        """Return the part of the budget that is spent, 0 to 1."""
        return min(1.0, (time.monotonic() - self._began) / self.seconds)

    def is_spent(self) -> bool:
        """Return whether no further case may be started."""
        return self.compute_part_spent() >= 1.0


def choose_budget(arguments: argparse.Namespace) -> float:
    """Return the seconds that a run may take by default."""
    return QUICK_BUDGET * (1 + len(arguments.peer)) if arguments.quick else math.inf


def describe_duration(items: Sequence[Item], seconds: float, budget: Budget) -> str:
    """Return how many cases there are, and how long they take.

    Example:
        >>> describe_duration([], 1.0, Budget(140.0, 0.0)), describe_duration([], 1.0, Budget(math.inf, 0.0))
        ('0 cases, at most 2 min 40 s', '0 cases, about 0 s')
    """
    expected = _OVERHEAD * seconds * sum(len(item.phases) for item in items)
    if budget.is_limited:
        # The case that is running when the budget is spent is finished, or given up.
        return f"{len(items)} cases, at most {format_duration(budget.seconds + _QUICK_PATIENCE)}"
    return f"{len(items)} cases, about {format_duration(expected)}"


def order_by_importance(items: Iterable[Item]) -> list[Item]:
    """Return the items in the order in which they are measured: float64 first, cheap ones first."""
    return sorted(
        items, key=lambda item: (item.case.dtype != torch.float64, item.case.count_operations("step"))
    )


def sort_rows(rows: Sequence[Row], items: Sequence[Item]) -> list[Row]:
    """Return rows in the order of the items; those of other cases come first, in their own order."""
    place = {item.key: i for i, item in enumerate(items)}
    return sorted(rows, key=lambda row: place.get(make_case_key(row), -1))


def choose_seconds(quick: bool) -> float:
    """Return how long each phase of a case is timed by default."""
    return _QUICK_SECONDS if quick else SECONDS


def _choose_shapes(arguments: argparse.Namespace, name: str) -> Iterator[Shape]:
    sizes, batches = SIZES, BATCHES
    if arguments.quick:
        sizes, batches = _QUICK_OTHER_SIZES, _QUICK_OTHER_BATCHES
        if name in _QUICK_SIZES:
            sizes, batches = _QUICK_SIZES[name], _QUICK_BATCHES
    yield from Shape.parse_list(sizes) if arguments.sizes is None else arguments.sizes
    yield from Shape.parse_list(batches) if arguments.batches is None else arguments.batches


def _choose_dtypes(arguments: argparse.Namespace, name: str) -> list[torch.dtype]:
    return [torch.float64] if arguments.quick and name not in _QUICK_SIZES else list(DTYPES.values())


def _list_items(earlier: Results, device: str) -> list[Item]:
    """Return the cases of a file that this lapgrad knows, on one device."""
    phases: dict[tuple[Case, int], dict[Phase, None]] = {}
    for row in earlier.rows:
        known = row["operator"] in OPERATORS and row["dtype"] in DTYPES and row["phase"] in PHASES
        if not known or row["library"] != "lapgrad" or row["device"] != device:
            continue
        phases.setdefault((_parse_case(row), row["threads"]), {})[row["phase"]] = None
    return [Item(case, threads, tuple(found)) for (case, threads), found in phases.items()]


def _parse_case(row: Row) -> Case:
    *batch, n, m = row["shape"]
    shape, device = Shape(n, m, tuple(batch)), torch.device(row["device"])
    return Case(OPERATORS[row["operator"]], shape, DTYPES[row["dtype"]], device)


def _format_all(values: list[Any] | None) -> list[str] | None:
    if values is None:
        return None
    return [name_dtype(value) if isinstance(value, torch.dtype) else str(value) for value in values]
