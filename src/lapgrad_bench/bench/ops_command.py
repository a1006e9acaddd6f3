"""The command `lapgrad bench ops`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from lapgrad_bench.bench.measure.timing import freeze_existing_objects
from lapgrad_bench.bench.ops import bars, comparison, plan, tables
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops.bars import MANY_CORES, Machine, Verdict
from lapgrad_bench.bench.ops_options import add_arguments, check_common_options
from lapgrad_bench.bench.peers.client import Peers
from lapgrad_bench.bench.watched.watchdog import FailedError, Measurer, make_measurer
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.plotting import write_figures
from lapgrad_bench.common.progress import show_progress
from lapgrad_bench.common.results import Results, Row
from lapgrad_bench.common.resumption import (
    UsageError,
    load_results,
    report_interruption,
    start_or_resume,
    warn_when_busy,
    write_results,
)

__all__ = ["add_arguments", "run"]

_REPEATS = 2
"""How often a case that looks worse than before is measured again, to rule out noise."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write results; return the exit code."""
    try:
        _check_options(arguments)
        earlier = load_results("ops", arguments.compare) if arguments.compare else None
        if earlier is not None and arguments.with_file:
            return _compare_files(arguments, earlier)
        warn_when_busy()
        if arguments.bars:
            return _run_bars(arguments)
        return _run_cases(arguments, earlier)
    except UsageError as error:
        print(f"lapgrad bench: {error}", file=sys.stderr)
        return 2


def _check_options(arguments: argparse.Namespace) -> None:
    check_common_options(arguments)
    if arguments.with_file and not arguments.compare:
        raise UsageError("--with: say with --compare which file it is compared with")
    if arguments.bars and (arguments.compare or arguments.plots or arguments.peer):
        raise UsageError("--bars goes with none of --peer, --compare and --plots")


def _run_cases(arguments: argparse.Namespace, earlier: Results | None) -> int:
    chosen = plan.make_plan(arguments, earlier)
    results = start_or_resume("ops", arguments, chosen.options)
    done = {tables.make_case_key(row) for row in results.rows}
    budget = plan.Budget(arguments.budget or plan.choose_budget(arguments), arguments.give_up)
    to_do = [item for item in chosen.items if item.key not in done]
    if budget.is_limited:
        to_do = plan.order_by_importance(to_do)
    print(
        f"lapgrad bench: {plan.describe_duration(to_do, chosen.seconds, budget)}", file=sys.stderr, flush=True
    )
    not_timed: list[str] = []
    left_out = 0
    peers = Peers(arguments.peer, arguments.device, arguments.peer_timeout, results.peers)
    with freeze_existing_objects(), make_measurer(peers, budget.patience) as measuring:
        try:
            total, present = len(chosen.items), len(chosen.items) - len(to_do)
            with show_progress(present / max(1, total), quiet_off_terminal=True) as show:
                for i, item in enumerate(to_do, present):
                    if budget.is_spent():
                        left_out = total - i
                        break
                    show(max(i / total, budget.compute_part_spent()), f"{i + 1}/{total} {item.case}")
                    try:
                        found = _measure(measuring, item, chosen.seconds)
                    except DisagreementError as error:
                        not_timed.append(str(error))
                        continue
                    except FailedError as error:
                        not_timed.append(f"{item}: {error}")
                        continue
                    results.rows += found
                    write_results(results, arguments.output)
            if earlier is not None:
                _measure_worse_again(measuring, chosen, earlier, results)
        except KeyboardInterrupt:
            write_results(results, arguments.output)
            report_interruption(arguments, len(results.rows))
            return 130
    results.complete = left_out == 0
    results.rows = plan.sort_rows(results.rows, chosen.items)
    write_results(results, arguments.output)
    _print_cases(arguments, results)
    if left_out:
        more = f"--resume --output {arguments.output}" if arguments.output else "--budget SECONDS"
        print(f"{left_out} of {total} cases were not timed in {budget.seconds:.0f} s; {more} times them.")
    for line in not_timed:
        print(f"lapgrad bench: not timed: {line}", file=sys.stderr)
    if arguments.plots:
        _plot(results, arguments.plots)
    code = 1 if not_timed else 0
    if earlier is not None:
        new = arguments.output or "this run"
        code = max(code, _print_comparison(arguments, earlier, results, str(new), repeated=True))
    return code


def _measure(
    measuring: Measurer,
    item: plan.Item,
    seconds: float,
    *,
    again: bool = False,
    failed: dict[str, str] | None = None,
) -> list[Row]:
    """Return the rows of a case; with `again`, without peers and memory."""
    request = {"item": item.as_request(), "seconds": seconds, "with_peers": not again, "memory": not again}
    rows: list[Row] = measuring.measure("case", failed, **request)["rows"]
    return rows


def _measure_worse_again(measuring: Measurer, chosen: plan.Plan, earlier: Results, results: Results) -> None:
    """Measure cases that look worse than before again, and replace their rows if they are better now."""
    items = {item.key: item for item in chosen.items}
    for _ in range(_REPEATS):
        worse = comparison.compare(earlier, results).worse
        with show_progress(0.0, quiet_off_terminal=True) as show:
            for i, change in enumerate(worse):
                case, phase = change.key
                item = items[case].select_phase(phase)
                show(i / len(worse), f"again: {item.case} {phase}")
                # A library that hung would hang again until its time limit.
                failed = {
                    row["library"]: row["error"]
                    for row in results.rows
                    if "error" in row and tables.make_case_key(row) == case
                }
                try:
                    again = _measure(measuring, item, 3.0 * chosen.seconds, again=True, failed=failed)
                except (DisagreementError, FailedError):
                    continue  # The first figure is kept.
                for row in again:
                    if "error" not in row:
                        _replace_if_better(results, row)


def _replace_if_better(results: Results, row: dict[str, object]) -> None:
    same = ("operator", "shape", "dtype", "device", "threads", "phase", "library")
    for i, present in enumerate(results.rows):
        if all(present[name] == row[name] for name in same):
            if "error" not in present and comparison.compute_cost(row) < comparison.compute_cost(present):
                results.rows[i] = {**row, "extra_bytes": present["extra_bytes"]}
            return


def _compare_files(arguments: argparse.Namespace, earlier: Results) -> int:
    later = load_results("ops", arguments.with_file)
    return _print_comparison(arguments, earlier, later, str(arguments.with_file), repeated=False)


def _print_comparison(
    arguments: argparse.Namespace, old: Results, new: Results, name: str, repeated: bool
) -> int:
    found = comparison.compare(old, new)
    if found.worse or found.better:
        _print(comparison.make_table(found), f"{arguments.compare} and {name}", arguments.markdown)
    for line in comparison.list_notes(found, (str(arguments.compare), name), repeated):
        print(line)
    if not found.changes:
        print(f"lapgrad bench: {arguments.compare} and {name} have no case in common", file=sys.stderr)
        return 2
    return 1 if found.worse else 0


def _print_cases(arguments: argparse.Namespace, results: Results) -> None:
    others = ["torch", *(spec.library for spec in arguments.peer)]
    threads = sorted({row["threads"] for row in results.rows})
    if arguments.markdown:
        print(text_tables.format_markdown(tables.make_short_table(results.rows, others)))
        print(f"\n{text_tables.describe_machine(threads, arguments.device)}")
    else:
        title = f"lapgrad against {', '.join(others)}"
        text_tables.print_table(
            tables.make_timing_table(results.rows, others),
            title,
            narrow=tables.make_narrow_table(results.rows, others),
            narrow_note="ms: lapgrad's time. 2.0×: lapgrad is twice as fast. More columns: COLUMNS=130.",
        )
    for line in tables.list_failure_notes(results.rows):
        print(line)
    for line in tables.list_peer_notes(results.peers):
        print(line)
    if len(threads) > 1:
        _print(tables.make_scaling_table(results.rows), "scaling of lapgrad with threads", arguments.markdown)


def _plot(results: Results, folder: Path) -> None:
    from lapgrad_bench.bench.ops import plots as op_plots

    written = write_figures(op_plots.draw_figures(results.rows), folder)
    for path in written:
        print(f"written: {path}")
    if not written:
        print("nothing to plot: no operator was timed at two sizes or more")


def _run_bars(arguments: argparse.Namespace) -> int:
    threads = arguments.threads[-1] if arguments.threads else torch.get_num_threads()
    machine: Machine = "many-cores" if threads >= MANY_CORES else "few-cores"
    if arguments.device == "cuda":
        machine = "cuda"
    if arguments.bars != "auto":
        machine = arguments.bars
    seconds = arguments.seconds or plan.choose_seconds(arguments.quick)
    wanted = [
        bar
        for bar in bars.list_bars(machine)
        if arguments.ops is None or bar.what.split()[0] in arguments.ops
    ]
    options = {"bars": machine, "threads": [threads], "device": arguments.device, "seconds": seconds}
    results = start_or_resume("ops", arguments, {**options, "operators": arguments.ops})
    known = {bar["what"]: bar for bar in results.bars if bar["figure"] is not None}
    verdicts = [
        Verdict(bar, known[bar.what]["figure"], known[bar.what].get("device"))
        for bar in wanted
        if bar.what in known
    ]
    not_measured: list[str] = []
    common = {"machine": machine, "threads": threads, "seconds": seconds, "device": arguments.device}
    try:
        with (
            make_measurer(Peers(device=arguments.device), arguments.give_up) as measuring,
            show_progress(len(verdicts) / max(1, len(wanted)), quiet_off_terminal=True) as show,
        ):
            for bar in wanted:
                if bar.what not in known:
                    show(len(verdicts) / len(wanted), bar.what)
                    try:
                        found = measuring.ask({"do": "bar", "what": bar.what, **common})
                    except (DisagreementError, FailedError) as error:
                        not_measured.append(f"{bar.what}: {error}")
                        found = {"figure": float("nan"), "device": None, "rows": []}
                    verdicts.append(Verdict(bar, found["figure"], found["device"]))
                    results.bars = [verdict.as_dict() for verdict in verdicts]
                    results.rows += found["rows"]
                    write_results(results, arguments.output)
    except KeyboardInterrupt:
        write_results(results, arguments.output)
        report_interruption(arguments, len(results.bars))
        return 130
    results.complete = True
    write_results(results, arguments.output)
    passed = sum(verdict.passed for verdict in verdicts)
    where = machine if machine == "cuda" else f"{machine}, {threads} threads"
    title = f"{where}: {passed} of {len(verdicts)} bars reached"
    _print(
        text_tables.make_bars_table([verdict.as_dict() for verdict in verdicts]), title, arguments.markdown
    )
    for line in not_measured:
        print(f"lapgrad bench: not measured: {line}", file=sys.stderr)
    return 1 if arguments.strict and passed < len(verdicts) else 0


def _print(table: text_tables.Table, title: str, markdown: bool) -> None:
    if markdown:
        print(text_tables.format_markdown(table))
    else:
        text_tables.print_table(table, title)
