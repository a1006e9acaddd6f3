"""The command `lapgrad`: info, demo, and the commands that other installed packages add.

A package adds a command by an entry point in the group ``lapgrad.commands``, a function that takes argparse's
subparsers. ``lapgrad_bench`` adds bench, reproduce and report; info and demo work without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from lapgrad import __version__, info
from lapgrad.demo import command as demo

#: What ``ArgumentParser.add_subparsers`` returns; argparse has no public name for it.
Subparsers = Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    parser = _make_parser()
    chosen = parser.parse_args(typed)
    chosen.command_line = shlex.join(["lapgrad", *typed])
    run: Callable[[argparse.Namespace], int] | None = getattr(chosen, "run", None)
    if run is None:
        parser.print_help()
        return 2
    try:
        return run(chosen)
    except KeyboardInterrupt:
        print("lapgrad: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has ended. Python would report that again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _make_parser() -> argparse.ArgumentParser:
    purpose = "Differentiable BLAS and LAPACK operators for PyTorch."
    parser = argparse.ArgumentParser(prog="lapgrad", description=purpose)
    parser.add_argument("--version", action="version", version=f"lapgrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="command")
    _add_info(commands)
    _add_demo(commands)
    for entry in entry_points(group="lapgrad.commands"):
        entry.load()(commands)
    return parser


def _add_info(commands: Subparsers) -> None:
    parser = commands.add_parser("info", help="versions, CPU, BLAS, threads, CUDA")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print everything: thresholds of the core, symbols of BLAS, which calls accelerate() takes",
    )
    parser.set_defaults(run=_run_info)


def _add_demo(commands: Subparsers) -> None:
    help_text = "a tour: fit a Gaussian process to measurements of CO2; or an example: demo list"
    parser = commands.add_parser("demo", help=help_text)
    demo.add_arguments(parser)
    parser.set_defaults(run=demo.run)


def _run_info(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(info.collect(), indent=1, default=str))
    else:
        print(info.format_text() if arguments.verbose else info.format_summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
