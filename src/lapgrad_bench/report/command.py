"""The command `lapgrad report`."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from lapgrad._exceptions import MissingDependencyError
from lapgrad_bench.report.page import render_page
from lapgrad_bench.report.sources import Problem, Run, find_results, read_runs

_HOW = "`lapgrad bench ops --quick --output bench.json` makes one in a few minutes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad report`."""
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULT.json",
        help="what `lapgrad bench ... --output` has written [all results in this folder]",
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page [report.html]")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print what is in it; return the exit code, 1 when a file could not be used."""
    paths: list[Path] = arguments.results or find_results(Path())
    if not paths:
        return _fail(f"there are no results of lapgrad in {Path().resolve()}. {_HOW}")
    output: Path = arguments.output
    if output.resolve() in {path.resolve() for path in paths}:
        return _fail(f"--output {output} is one of the results: the page would replace it")
    runs, problems = read_runs(paths)
    for problem in problems:
        _print_message(problem.reason)
    if not runs:
        return _fail(f"nothing to show. {_HOW}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render_page(runs, problems), encoding="utf-8")
    except MissingDependencyError as reason:
        return _fail(str(reason))
    except OSError as reason:
        return _fail(f"{output} cannot be written: {reason.strerror or reason}")
    print(_summarise(output, runs, problems))
    if arguments.open and not webbrowser.open(output.resolve().as_uri()):
        _print_message(f"no browser was found; open {output.resolve()} yourself")
    return 1 if problems else 0


def _summarise(output: Path, runs: Sequence[Run], problems: Sequence[Problem]) -> str:
    lines = [f"{output}:"]
    for run in runs:
        state = "" if run.results.complete else ", interrupted"
        lines.append(f"  {run.path}: {run.results.kind}, {len(run.rows):,} figures{state}")
    lines += [f"  {problem.path}: left out" for problem in problems]
    return "\n".join(lines)


def _fail(message: str) -> int:
    _print_message(message)
    return 1


def _print_message(message: str) -> None:
    print(f"lapgrad report: {message}", file=sys.stderr)
