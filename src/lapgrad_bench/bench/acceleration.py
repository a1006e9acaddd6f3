"""The command `lapgrad bench accelerate`: where lapgrad is faster behind torch's functions, and by how much.

Without --check: times every operator over orders and batches, taken by lapgrad and passed on to torch, and
writes the table that ``lapgrad.accelerate`` decides by. With --check: times the same calls in a process with
and without acceleration, as users have it, and says where it is slower.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lapgrad
from lapgrad.accelerate import registry
from lapgrad.accelerate.routes import ROUTES
from lapgrad_bench.bench.measure.timing import (
    Thunk,
    freeze_existing_objects,
    make_sampler,
    take_turns,
    time_in_turns,
)
from lapgrad_bench.common.machine import collect_metadata
from lapgrad_bench.common.option_values import make_names_parser, parse_number, parse_positive

#: Numbers of matrices that are tried, for each order.
ITEMS = (1, 4, 16, 64, 256, 1000, 10000)

#: Calls of batches, and of single matrices, that take more operations than this are not timed. Their entry of
#: the table is that of the next smaller order.
_MOST_FLOPS, _MOST_FLOPS_OF_ONE = 4e8, 6e9

#: lapgrad serves calls for which it needs at most this part of torch's time: ratios vary from run to run.
_MARGIN = 0.95

#: Calls that --check accepts: slower by at most 5 % and 3 microseconds.
_ALLOWED_RATIO, _ALLOWED_SECONDS = 1.05, 3e-6

#: Recording a call may cost this part of what the gradient gains on top of that: taking the call pays if a
#: backward follows at least every second time.
_PART_OF_GAIN = 0.5

#: Orders up to which torch's LU of batches is right on several CPU threads. Above, it may not return, and
#: lapgrad takes the call whichever is faster.
_SAFE_ORDERS = {route.name: route.safe_order for route in ROUTES if route.must is not None}


@dataclass(frozen=True)
class Case:
    """One operator as users of torch call it.

    Attributes:
        name: Of ``accelerate(only=...)``.
        rows: The rows of the table that it decides about.
        call: The function of torch.
        operands: (items, order, dtype, device) -> operands.
        flops: In units of n^3 per matrix, about.
        has_gradient: lapgrad has the gradient, too.
        devices: Where lapgrad has a choice: on others it leaves these calls to torch, or has to take them.
    """

    name: str
    rows: tuple[str, ...]
    call: Callable[..., Any]
    operands: Callable[[int, int, torch.dtype, str], tuple[Tensor, ...]]
    flops: float
    has_gradient: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")


def _draw_matrices(items: int, n: int, dtype: torch.dtype, device: str, columns: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    shape = (
        (n, n if columns is None else columns)
        if items == 1
        else (items, n, n if columns is None else columns)
    )
    return torch.randn(shape, generator=generator, dtype=dtype).to(device)


def _draw_general(items: int, n: int, dtype: torch.dtype, device: str) -> tuple[Tensor]:
    return (_draw_matrices(items, n, dtype, device) + n**0.5 * torch.eye(n, dtype=dtype, device=device),)


def _draw_positive_definite(items: int, n: int, dtype: torch.dtype, device: str) -> tuple[Tensor]:
    A = _draw_matrices(items, n, dtype, device)
    return (A @ A.mT / n + torch.eye(n, dtype=dtype, device=device),)


def _draw_factor(items: int, n: int, dtype: torch.dtype, device: str) -> tuple[Tensor]:
    return (torch.linalg.cholesky(_draw_positive_definite(items, n, dtype, device)[0]),)


def _draw_with_columns(columns: int | None) -> Callable[[int, int, torch.dtype, str], tuple[Tensor, ...]]:
    return lambda items, n, dtype, device: (
        *_draw_factor(items, n, dtype, device),
        _draw_matrices(items, n, dtype, device, columns),
    )


def _solve_lower(L: Tensor, B: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(L, B, upper=False)


def _compute_svd(A: Tensor) -> Any:
    return torch.linalg.svd(A, full_matrices=False)


CASES = (
    Case(
        "cholesky",
        ("linalg_cholesky_ex", "cholesky"),
        torch.linalg.cholesky,
        _draw_positive_definite,
        0.5,
    ),
    Case(
        "solve_triangular",
        ("linalg_solve_triangular", "triangular_solve"),
        _solve_lower,
        _draw_with_columns(None),
        1.0,
    ),
    Case(
        "solve_triangular",
        ("linalg_solve_triangular narrow", "triangular_solve narrow"),
        _solve_lower,
        _draw_with_columns(1),
        0.1,
    ),
    Case(
        "cholesky_solve",
        ("_cholesky_solve_helper",),
        lambda L, B: torch.cholesky_solve(B, L),
        _draw_with_columns(None),
        2.0,
        has_gradient=False,
    ),
    Case(
        "cholesky_solve",
        ("_cholesky_solve_helper narrow",),
        lambda L, B: torch.cholesky_solve(B, L),
        _draw_with_columns(1),
        0.1,
        has_gradient=False,
    ),
    Case(
        "cholesky_inverse",
        ("cholesky_inverse",),
        torch.cholesky_inverse,
        _draw_factor,
        1.0,
        has_gradient=False,
    ),
    Case("eigh", ("_linalg_eigh",), torch.linalg.eigh, _draw_positive_definite, 12.0),
    Case("svd", ("_linalg_svd",), _compute_svd, _draw_general, 25.0),
    Case("qr", ("linalg_qr",), torch.linalg.qr, _draw_general, 5.0),
    Case("isclose", ("isclose",), lambda A: torch.isclose(A, A.mT), _draw_general, 0.01, False, ("cpu",)),
    # By name, as a call of torch's LU must not stand here: batches that are not safe are not timed.
    *(
        Case(name, (operator,), getattr(torch.linalg, name), _draw_general, flops, has_gradient, devices)
        for name, operator, flops, has_gradient, devices in (
            ("inv", "linalg_inv_ex", 2.0, False, ("cpu", "cuda")),
            ("lu_factor", "linalg_lu_factor_ex", 0.7, True, ("cpu",)),
            ("det", "_linalg_det", 0.7, False, ("cuda",)),
            ("slogdet", "_linalg_slogdet", 0.7, False, ("cuda",)),
            ("lu_factor", "linalg_lu_factor_ex", 0.7, False, ("cuda",)),
        )
    ),
    Case(
        "solve",
        ("_linalg_solve_ex",),
        getattr(torch.linalg, "solve"),  # noqa: B009
        lambda items, n, dtype, device: (
            *_draw_general(items, n, dtype, device),
            _draw_matrices(items, n, dtype, device, 1),
        ),
        0.8,
        False,
        ("cuda",),
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad bench accelerate`."""
    names = sorted({case.name for case in CASES})
    parser.add_argument("--only", type=make_names_parser(names), help=f"of {', '.join(names)} [all]")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    dtypes = ["float64", "float32"]
    parser.add_argument(
        "--dtypes", type=make_names_parser(dtypes), default=dtypes, help=f"[{','.join(dtypes)}]"
    )
    parser.add_argument("--threads", type=parse_number, help="[torch's]")
    parser.add_argument("--seconds", type=parse_positive, default=0.03, help="per call that is timed [0.03]")
    parser.add_argument("--check", action="store_true", help="find calls that are slower than without")
    parser.add_argument("--output", type=Path, help="write the table, or the rows of --check, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes; returns the exit code: with --check 1 if a call is slower than allowed."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"lapgrad bench accelerate: torch {torch.__version__} sees no CUDA device", file=sys.stderr)
        return 2
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cases = [
        case
        for case in CASES
        if arguments.device in case.devices and (arguments.only is None or case.name in arguments.only)
    ]
    rows = len(cases) * len(arguments.dtypes)
    print(f"lapgrad bench accelerate: {rows} functions and dtypes, minutes for each", file=sys.stderr)
    with freeze_existing_objects():
        return _check(arguments, cases) if arguments.check else _write_table(arguments, cases)


def _write_table(arguments: argparse.Namespace, cases: list[Case]) -> int:
    table = registry.load_table()
    operators = table.setdefault(arguments.device, {})
    for case in cases:
        for dtype in arguments.dtypes:
            found = {kind: _measure_row(arguments, case, dtype, kind) for kind in ("forward", "gradient")}
            for row in case.rows:
                operators.setdefault(row, {})[dtype] = found
                for kind, entries in found.items():
                    print(f"{row} {dtype} {kind}: {registry.describe_row(entries)}", flush=True)
    machine = collect_metadata()
    table.setdefault("measured", {})[arguments.device] = {
        "date": machine["date"],
        "cpu": machine["cpu"]["model"],
        "torch": machine["versions"]["torch"],
        "threads": machine["threads"],
    }
    if arguments.output:
        arguments.output.write_text(format_table(table))
    return 0


def format_table(table: dict[str, Any]) -> str:
    """Return the table as JSON, one row of thresholds per line."""
    text = json.dumps(table, indent=1)
    lines: list[str] = []
    for line in text.splitlines():
        if lines and lines[-1].endswith(("[", ",")) and line.strip().rstrip(",").lstrip("-").isdigit():
            lines[-1] += ("" if lines[-1].endswith("[") else " ") + line.strip()
        elif lines and line.strip() in ("]", "],") and lines[-1][-1].isdigit():
            lines[-1] += line.strip()
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _measure_row(arguments: argparse.Namespace, case: Case, dtype: str, kind: str) -> list[int]:
    """The least number of matrices per order for which lapgrad is faster with that many and all more."""
    if kind == "gradient" and not case.has_gradient:
        return [0] * registry.BUCKETS
    row: list[int] = []
    for position in range(registry.BUCKETS):
        # The order in the middle of those that share the entry.
        n = max(1, round(0.75 * 2**position))
        least = 0
        measured = False
        for items in reversed(ITEMS):
            if not _may_be_timed(case, items, n, arguments.device):
                continue
            measured = True
            # Measured again for longer: noise of the machine can look like a slow call.
            if all(
                _measure_ratio(arguments, case, items, n, dtype, kind, longer) > _MARGIN for longer in (1, 3)
            ):
                break
            least = items
        row.append(least if measured else (row[-1] if row else 0))
    return smooth_row(row)


def _may_be_timed(case: Case, items: int, n: int, device: str) -> bool:
    safe_order = _SAFE_ORDERS.get(case.name)
    if device == "cpu" and items > 1 and safe_order is not None and n > safe_order:
        return False
    work = items * n**3 * case.flops
    return work <= (_MOST_FLOPS_OF_ONE if items == 1 else _MOST_FLOPS) and items * n * n <= 3e6


def smooth_row(row: list[int]) -> list[int]:
    """Return the row with each entry replaced by the median of itself and its neighbours.

    Example:
        >>> smooth_row([0, 0, 50, 1, 8, 8, 0, 1])
        [0, 0, 50, 8, 8, 8, 8, 1]
    """
    never = 10**9
    padded = [entry or never for entry in (row[0], *row, row[-1])]
    middle = [sorted(padded[i : i + 3])[1] for i in range(len(row))]
    return [0 if entry == never else entry for entry in middle]


def _measure_ratio(
    arguments: argparse.Namespace, case: Case, items: int, n: int, dtype: str, kind: str, longer: float
) -> float:
    """Return lapgrad's time divided by torch's, with overrides installed for both.

    Computed from the fast samples: other programs on the machine only add to the time of a call.
    """
    of_lapgrad, of_torch = _time_both(arguments, case, items, n, dtype, kind, longer)
    ratio = of_lapgrad / of_torch
    if kind == "forward" or ratio > _MARGIN:
        return ratio
    # Some recorded calls are never followed by a backward. Recording must not cost more than is allowed, or
    # than a part of what a backward gains.
    recorded, recorded_by_torch = _time_both(arguments, case, items, n, dtype, "recorded", longer)
    excess = recorded - (_ALLOWED_RATIO * recorded_by_torch + _ALLOWED_SECONDS)
    return ratio if excess <= _PART_OF_GAIN * (of_torch - of_lapgrad) else math.inf


def _time_both(
    arguments: argparse.Namespace, case: Case, items: int, n: int, dtype: str, kind: str, longer: float
) -> tuple[float, float]:
    """Return the seconds that lapgrad takes, and torch."""
    thunk = _make_thunk(case, items, n, getattr(torch, dtype), arguments.device, kind)
    taken = lapgrad.accelerate(only={case.name}, always=True)(thunk)
    passed_on = lapgrad.accelerate.off()(thunk)
    of_lapgrad, of_torch = (
        timing.low
        for timing in time_in_turns(
            [taken, passed_on],
            longer * arguments.seconds,
            least_rounds=5,
            device=torch.device(arguments.device),
        )
    )
    return of_lapgrad, of_torch


def _make_thunk(case: Case, items: int, n: int, dtype: torch.dtype, device: str, kind: str) -> Thunk:
    operands = case.operands(items, n, dtype, device)
    if kind == "forward":
        return lambda: case.call(*operands)
    leaves = [operand.requires_grad_() for operand in operands]
    results = case.call(*leaves)
    chosen = [x for x in (results if isinstance(results, tuple) else (results,)) if x.requires_grad]
    if kind == "recorded" or not chosen:
        return lambda: case.call(*leaves)
    cotangents = [torch.ones_like(x) for x in chosen]

    def step() -> Any:
        results = case.call(*leaves)
        chosen = [x for x in (results if isinstance(results, tuple) else (results,)) if x.requires_grad]
        return torch.autograd.grad(chosen, leaves, cotangents)

    return step


def _list_calls(device: str, case: Case) -> Iterator[tuple[int, int, str]]:
    """(order, items, kind) of every call that --check times.

    forward: no gradient is asked for; recorded: it is, and not computed; gradient: values and gradient.
    """
    for n in (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200, 256, 512, 1024, 2048):
        for items in ITEMS:
            for kind in ("forward", "recorded", "gradient"):
                if _may_be_timed(case, items, n, device):
                    yield n, items, kind


def _check(arguments: argparse.Namespace, cases: list[Case]) -> int:
    slower, rows = [], []
    for case in cases:
        for dtype in arguments.dtypes:
            for n, items, kind in _list_calls(arguments.device, case):
                row = _compare(arguments, case, items, n, dtype, kind)
                rows.append(row)
                if row["excess_us"] > 0.0:
                    # Measured again for longer: noise of the machine can look like a slow call.
                    row.update(_compare(arguments, case, items, n, dtype, kind, longer=5.0))
                if row["excess_us"] > 0.0:
                    slower.append(row)
                    print(
                        f"{case.rows[0]} {dtype} {items} x ({n} x {n}) {kind}: {row['with_us']:.1f} us with, "
                        f"{row['without_us']:.1f} us without",
                        flush=True,
                    )
    print(f"{len(slower)} of {len(rows)} calls are slower than allowed")
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"machine": collect_metadata(), "rows": rows}, indent=1) + "\n"
        )
    return 1 if slower else 0


def _compare(
    arguments: argparse.Namespace,
    case: Case,
    items: int,
    n: int,
    dtype: str,
    kind: str,
    longer: float = 1.0,
) -> dict[str, Any]:
    """Time calls with and without acceleration; ``excess_us`` says by how much one is slower than allowed."""
    device = torch.device(arguments.device)
    thunk = _make_thunk(case, items, n, getattr(torch, dtype), arguments.device, kind)
    sample = make_sampler(thunk, device)

    def accelerated(calls: int) -> float:
        lapgrad.accelerate()
        try:
            return sample(calls)
        finally:
            lapgrad.accelerate.off()

    with_, without = take_turns([accelerated, sample], longer * arguments.seconds, least_rounds=5)
    excess = with_.low - (_ALLOWED_RATIO * without.low + _ALLOWED_SECONDS)
    return {
        "operator": case.rows[0],
        "dtype": dtype,
        "items": items,
        "order": n,
        "kind": kind,
        "with_us": 1e6 * with_.low,
        "without_us": 1e6 * without.low,
        "excess_us": 1e6 * max(excess, 0.0),
    }
