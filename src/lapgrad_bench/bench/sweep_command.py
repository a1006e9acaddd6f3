"""The command `lapgrad bench sweep`: every operator at random sizes, against torch and other libraries."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lapgrad_bench.bench import ops_options
from lapgrad_bench.bench.measure.timing import freeze_existing_objects
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops.cases import OPERATORS, Case, name_dtype
from lapgrad_bench.bench.ops.plan import DTYPES, Item
from lapgrad_bench.bench.ops.runner import Phase
from lapgrad_bench.bench.ops.tables import list_failure_notes, list_peer_notes
from lapgrad_bench.bench.peers.client import Peers
from lapgrad_bench.bench.sweep import draw, summary
from lapgrad_bench.bench.watched.watchdog import FailedError, Measurer, make_measurer
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.option_values import parse_number
from lapgrad_bench.common.progress import show_progress
from lapgrad_bench.common.results import Results, Row
from lapgrad_bench.common.resumption import (
    UsageError,
    report_interruption,
    start_or_resume,
    warn_when_busy,
    write_results,
)

_SECONDS = 600.0
_CALL_SECONDS = 2.0
_PHASE_SECONDS = 0.06
_PATIENCE = 60.0

_LONGER = 4.0
"""A timing that lapgrad loses is repeated for so many times as long: the noise of a machine looks like a slow
call, too. The longer timing replaces the first, whatever it says."""

_WRITING_PAUSE = 5.0
"""Seconds between two writes of the results file; the last figures are always written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: which cases are drawn, how long the run takes, and where the results go."""
    what = parser.add_argument_group("what is measured")
    what.add_argument("--ops", type=ops_options.parse_operators, help="operators, separated by commas [all]")
    what.add_argument("--dtypes", type=ops_options.parse_dtypes, help="[float64,float32]")
    what.add_argument("--phases", type=ops_options.parse_phases, help="[forward,backward]")
    what.add_argument("--threads", type=parse_number, help="[torch's]")
    what.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    what.add_argument("--seed", type=int, default=0, help="which cases are drawn [0]")
    what.add_argument(
        "--call-seconds",
        type=ops_options.parse_positive,
        default=_CALL_SECONDS,
        metavar="SECONDS",
        help=f"cases whose forward and backward pass takes longer, as estimated, are not drawn "
        f"[{_CALL_SECONDS:g}]",
    )
    length = parser.add_argument_group("how long")
    length.add_argument(
        "--seconds",
        type=ops_options.parse_positive,
        default=_SECONDS,
        help=f"when the run ends, after the case that it is at [{_SECONDS:g}]",
    )
    length.add_argument(
        "--cases", type=parse_number, help="when to end, as a number of cases of the seed [no limit]"
    )
    ops_options.add_peers(parser.add_argument_group(ops_options.PEERS_TITLE))
    ops_options.add_give_up(parser, _PATIENCE)
    output = parser.add_argument_group("what becomes of it")
    output.add_argument("--output", type=Path, help="results file (JSON), written while the run goes on")
    output.add_argument("--resume", action="store_true", help="continue with the cases of an --output file")
    output.add_argument("--plots", type=Path, metavar="DIR", help="a map of every operator, as PNG")
    output.add_argument(
        "--worst", type=parse_number, default=20, help="how many of the slowest are printed [20]"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write results; return the exit code: 1 if a case could not be timed."""
    try:
        ops_options.check_common_options(arguments)
        warn_when_busy()
        return _run_sweep(arguments)
    except UsageError as error:
        print(f"lapgrad bench: {error}", file=sys.stderr)
        return 2


def _run_sweep(arguments: argparse.Namespace) -> int:
    results = start_or_resume("sweep", arguments, _list_options(arguments))
    done = {row["number"] for row in results.rows}
    peers = Peers(arguments.peer, arguments.device, arguments.peer_timeout, results.peers)
    begin, written = time.monotonic(), time.monotonic()
    with freeze_existing_objects(), make_measurer(peers, arguments.give_up) as measuring:
        try:
            with show_progress(0.0) as show:
                for number, item in enumerate(_draw_items(arguments)):
                    spent = time.monotonic() - begin
                    if spent >= arguments.seconds:
                        break
                    if number in done:
                        continue
                    show(spent / arguments.seconds, f"case {number}: {item.case}")
                    results.rows += [{**row, "number": number} for row in _measure(measuring, item)]
                    if time.monotonic() > written + _WRITING_PAUSE:
                        write_results(results, arguments.output)
                        written = time.monotonic()
        except KeyboardInterrupt:
            write_results(results, arguments.output)
            report_interruption(arguments, len(results.rows))
            return 130
    results.complete = True
    write_results(results, arguments.output)
    return _print_summary(arguments, results)


def _list_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Return what determines the cases and their times, which a resumed run must share."""
    return {
        "seed": arguments.seed,
        "operators": arguments.ops,
        "dtypes": [name_dtype(dtype) for dtype in _choose_dtypes(arguments)],
        "phases": list(_choose_phases(arguments)),
        "threads": [_choose_threads(arguments)],
        "device": arguments.device,
        "call_seconds": arguments.call_seconds,
        "peers": [str(spec) for spec in arguments.peer],
    }


def _draw_items(arguments: argparse.Namespace) -> Iterator[Item]:
    device, threads = torch.device(arguments.device), _choose_threads(arguments)
    cases: Iterator[Case] = draw.draw_cases(
        arguments.seed,
        draw.Limits.choose(device, threads, arguments.call_seconds),
        operators=arguments.ops or tuple(OPERATORS),
        dtypes=_choose_dtypes(arguments),
        device=device,
    )
    for case in itertools.islice(cases, arguments.cases):
        yield Item(case, threads, _choose_phases(arguments))


def _choose_threads(arguments: argparse.Namespace) -> int:
    return arguments.threads or torch.get_num_threads()


def _choose_dtypes(arguments: argparse.Namespace) -> list[torch.dtype]:
    return arguments.dtypes or list(DTYPES.values())


def _choose_phases(arguments: argparse.Namespace) -> tuple[Phase, ...]:
    return tuple(arguments.phases or ("forward", "backward"))


def _measure(measuring: Measurer, item: Item) -> list[Row]:
    """Return the rows of a case; one row with an error where it could not be timed."""
    try:
        rows = _ask(measuring, item, _PHASE_SECONDS)
        for phase in item.phases:
            first = [row for row in rows if row["phase"] == phase]
            failed = {row["library"]: row["error"] for row in first if "error" in row}
            if any(one.is_slower for one in summary.compare_libraries(first)):
                again = _ask(measuring, item.select_phase(phase), _LONGER * _PHASE_SECONDS, failed)
                rows = [row for row in rows if row["phase"] != phase] + again
    except (DisagreementError, FailedError) as error:
        name, sizes, dtype, device, threads = item.key
        case = {"operator": name, "shape": list(sizes), "dtype": dtype, "device": device}
        figures = {"median_s": None, "samples": 0, "error": str(error)}
        return [{**case, "threads": threads, "phase": item.phases[0], "library": "lapgrad", **figures}]
    return rows


def _ask(measuring: Measurer, item: Item, seconds: float, failed: dict[str, str] | None = None) -> list[Row]:
    request: dict[str, Any] = {"item": item.as_request(), "seconds": seconds}
    found = measuring.measure("case", failed, **request, with_peers=True, memory=False, against_gemm=False)
    rows: list[Row] = found["rows"]
    return rows


def _print_summary(arguments: argparse.Namespace, results: Results) -> int:
    compared = summary.compare_libraries(results.rows)
    if compared:
        text_tables.print_table(summary.make_operator_table(compared), "by operator, the worst first")
        worst = summary.list_worst(compared, arguments.worst)
        if worst:
            text_tables.print_table(summary.make_worst_table(worst), f"the {len(worst)} worst")
    print(f"seed {arguments.seed}: {summary.describe_share(compared)}")
    print(text_tables.describe_machine([_choose_threads(arguments)], arguments.device))
    for line in [*list_failure_notes(results.rows), *list_peer_notes(results.peers)]:
        print(line)
    if arguments.plots and compared:
        from lapgrad_bench.bench.sweep import heatmaps

        for path in heatmaps.write_maps(compared, arguments.plots):
            print(f"written: {path}")
    return 1 if any(row["library"] == "lapgrad" and "error" in row for row in results.rows) else 0
