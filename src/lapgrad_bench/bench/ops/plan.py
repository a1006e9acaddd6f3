"""Chooses the cases of a run: those of the options, the quick selection, or those of an earlier file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lapgrad_bench.bench.ops.cases import OPERATORS, Case, name_dtype
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops.runner import PHASES, Phase
from lapgrad_bench.bench.ops.tables import CaseKey
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

    def only(self, phase: str) -> Item:
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
