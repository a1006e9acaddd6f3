"""The command `lapgrad bench models`: criteria of models and their gradients against other libraries.

The times of the sparse process on *power*, over the number of inducing inputs, are Figure 2 of the paper.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lapgrad_bench.bench.models import exact_gp, sparse_gp
from lapgrad_bench.bench.models.cases import MODELS, Selection, list_cases
from lapgrad_bench.bench.ops import tables
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops_options import add_give_up, check_common_options, make_peer_parser, parse_seconds
from lapgrad_bench.bench.peers.client import LIBRARIES_OF_MODELS, TIMEOUT, Peers, PeerSpec
from lapgrad_bench.bench.watched.watchdog import FailedError, make_measurer
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.option_values import make_names_parser, parse_number, parse_numbers
from lapgrad_bench.common.plotting import write_figures
from lapgrad_bench.common.progress import show_progress
from lapgrad_bench.common.results import Results, Row
from lapgrad_bench.common.resumption import (
    UsageError,
    report_interruption,
    start_or_resume,
    warn_when_busy,
    write_results,
)

_SIZES = (3000,)
_SECONDS = 2.0
_PATIENCE = 600.0
"""Seconds after which a call is given up: with thousands of inducing inputs torch takes minutes."""
_QUICK_INDUCING, _QUICK_SIZES, _QUICK_SECONDS = (50, 200), (500,), 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: what is measured, against which libraries, and where the results go."""
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--models", type=make_names_parser(MODELS), default=list(MODELS), help=f"[{','.join(MODELS)}]"
    )
    what.add_argument(
        "--data-dir", type=Path, help="where power.csv.gz is [LAPGRAD_DATA]; missing: made-up data"
    )
    sizes = ",".join(map(str, sparse_gp.INDUCING))
    what.add_argument("--inducing", type=parse_numbers, help=f"of the sparse process [{sizes}]")
    what.add_argument("--sizes", type=parse_numbers, help="observations of the exact process [3000]")
    what.add_argument(
        "--kernels",
        type=make_names_parser(exact_gp.KERNELS),
        help=f"of the exact process [{','.join(exact_gp.KERNELS)}]",
    )
    what.add_argument(
        "--dimensions", type=parse_number, default=8, help="of the inputs of the exact process [8]"
    )
    what.add_argument(
        "--million", action="store_true", help="also the sparse process on a million points (CPU)"
    )
    what.add_argument("--rows", type=parse_number, help="use only so many rows of the data")
    what.add_argument("--threads", type=parse_number, default=torch.get_num_threads(), help="[torch's]")
    what.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    what.add_argument("--seconds", type=parse_seconds, help=f"per case, more for large ones [{_SECONDS:g}]")
    what.add_argument("--quick", action="store_true", help="few and small cases: a minute")
    whom = parser.add_argument_group("against whom (besides torch)")
    whom.add_argument(
        "--peer",
        type=make_peer_parser(LIBRARIES_OF_MODELS),
        action="append",
        metavar="NAME[=PYTHON]",
        help=f"{', '.join(LIBRARIES_OF_MODELS)}: with the Python that has it (gpy=/path/to/python), or this "
        "one [those that this one has]",
    )
    whom.add_argument(
        "--peer-timeout",
        type=float,
        default=2.0 * TIMEOUT,
        metavar="SECONDS",
        help=f"after which a peer that does not answer is given up [{2 * TIMEOUT:g}]",
    )
    add_give_up(parser, _PATIENCE)
    output = parser.add_argument_group("what becomes of it")
    output.add_argument("--output", type=Path, help="results file (JSON), written after every case")
    output.add_argument("--resume", action="store_true", help="continue an interrupted --output file")
    output.add_argument("--plots", type=Path, metavar="DIR", help="time and memory over U, as PNG and SVG")
    output.add_argument("--markdown", action="store_true", help="print tables in Markdown")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write results; return the exit code."""
    try:
        return _run(arguments)
    except UsageError as error:
        print(f"lapgrad bench models: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    check_common_options(arguments)
    warn_when_busy()
    selection, seconds = _select(arguments), _choose_seconds(arguments)
    selected = dataclasses.asdict(selection)
    common = {"threads": arguments.threads, "device": arguments.device, "seconds": seconds}
    options = {option: value for option, value in selected.items() if option not in ("folder", "quick")}
    results = start_or_resume("models", arguments, {**options, **common})
    try:
        not_timed = _measure_cases(arguments, selection, {"selection": selected, **common}, results)
    except KeyboardInterrupt:
        write_results(results, arguments.output)
        report_interruption(arguments, len(results.rows))
        return 130
    results.complete = True
    write_results(results, arguments.output)
    _print(arguments, results, selection.data)
    for line in not_timed:
        print(f"lapgrad bench models: not timed: {line}", file=sys.stderr)
    if arguments.plots:
        _plot(results.rows, arguments.plots)
    return 1 if not_timed else 0


def _select(arguments: argparse.Namespace) -> Selection:
    """Return what the options choose."""
    quick = arguments.quick
    inducing = arguments.inducing or list(_QUICK_INDUCING if quick else sparse_gp.INDUCING)
    data, name = sparse_gp.load_power_or_stand_in(arguments.data_dir)
    rows = min(len(data[0]), arguments.rows or len(data[0]))
    if rows < max(inducing):
        raise UsageError(f"--inducing: there are {rows} rows of data, {max(inducing)} were asked for")
    return Selection(
        models=arguments.models,
        data=name,
        folder=str(arguments.data_dir.absolute()) if arguments.data_dir else None,
        rows=rows,
        inducing=inducing,
        sizes=arguments.sizes or list(_QUICK_SIZES if quick else _SIZES),
        kernels=arguments.kernels or list(exact_gp.KERNELS[:1] if quick else exact_gp.KERNELS),
        dimensions=arguments.dimensions,
        large=arguments.million,
        quick=quick,
    )


def _choose_seconds(arguments: argparse.Namespace) -> float:
    if arguments.seconds is not None:
        return float(arguments.seconds)
    return _QUICK_SECONDS if arguments.quick else _SECONDS


def _measure_cases(
    arguments: argparse.Namespace, selection: Selection, request: dict[str, Any], results: Results
) -> list[str]:
    """Add rows and bars of the cases that the results lack; return why some could not be timed."""
    chosen, done = list_cases(selection), {_make_key(row) for row in results.rows}
    specs = arguments.peer
    if specs is None:
        specs = [spec for spec in map(PeerSpec, LIBRARIES_OF_MODELS) if spec.is_installed]
    to_do = [case for case in chosen if (case.model, str(case.case)) not in done]
    total, present = len(chosen), len(chosen) - len(to_do)
    not_timed = []
    peers = Peers(specs, arguments.device, arguments.peer_timeout, results.peers)
    with (
        make_measurer(peers, arguments.give_up) as measuring,
        show_progress(present / max(1, total), quiet_off_terminal=True) as show,
    ):
        for i, case in enumerate(to_do, present):
            show(i / total, f"{i + 1}/{total} {case}")
            try:
                found = measuring.measure("model", index=chosen.index(case), **request)
            except DisagreementError as error:
                not_timed.append(str(error))
                continue
            except FailedError as error:
                not_timed.append(f"{case}: {error}")
                continue
            data = {"data": selection.data}
            results.rows += [{**row, **data} if row["model"] == "sparse_gp" else row for row in found["rows"]]
            results.bars += found["bars"]
            write_results(results, arguments.output)
    return not_timed


def _print(arguments: argparse.Namespace, results: Results, name: str) -> None:
    printed = [
        (make_timing_table(results.rows), f"value and gradient; data of the sparse process: {name}"),
        (text_tables.make_bars_table(results.bars), "figures to be reached"),
    ]
    for table, title in printed:
        if not table[1]:
            continue
        if arguments.markdown:
            print(f"{title}\n\n{text_tables.format_markdown(table)}\n")
        else:
            text_tables.print_table(table, title)
    for row in results.rows:
        if "error" in row:
            sizes = ", ".join(f"{key} = {value}" for key, value in row["case"].items())
            print(f"{row['model']}, {sizes}: {row['error']}")
    if arguments.markdown:
        print(text_tables.describe_machine([arguments.threads], arguments.device))
    for line in tables.list_peer_notes(results.peers):
        print(line)


def make_timing_table(rows: Sequence[Row]) -> text_tables.Table:
    """Return a table with one line per case and library."""
    headings = ["model", "case", "library", "ms", "against lapgrad", "extra MB", "value"]
    lines = []
    own: dict[Any, Row] = {_make_key(row): row for row in rows if row["library"] == "lapgrad"}
    for row in rows:
        first = row["library"] == "lapgrad"
        extra, failed = row["extra_bytes"], "error" in row
        lines.append(
            [
                row["model"] if first else "",
                ", ".join(f"{key} = {value}" for key, value in row["case"].items()) if first else "",
                row["library"],
                tables.shorten_failure(row) if failed else text_tables.format_milliseconds(row["median_s"]),
                "-" if failed else f"{row['median_s'] / own[_make_key(row)]['median_s']:.2f}×",
                "-" if extra is None else f"{extra / 1e6:.1f}",
                "-" if failed else f"{row['value']:.8g}",
            ]
        )
    return headings, lines


def _plot(rows: Sequence[Row], folder: Path) -> None:
    from lapgrad_bench.bench.models import plots as model_plots

    written = write_figures(model_plots.draw_figures(rows), folder)
    for path in written:
        print(f"written: {path}")
    if not written:
        print("nothing to plot")


def _make_key(row: Row) -> tuple[str, str]:
    return row["model"], str(row["case"])
