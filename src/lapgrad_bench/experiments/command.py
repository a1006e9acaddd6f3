"""The command `lapgrad reproduce`: one subcommand per experiment.

An experiment is a module with ``NAME``, ``SUMMARY``, ``add_arguments(parser)`` and ``run(arguments)``, which
returns the exit code; it is listed in ``EXPERIMENTS``. Errors that it raises are printed here.
"""

from __future__ import annotations

import argparse
import functools
import sys
from types import ModuleType

from lapgrad import _exceptions
from lapgrad_bench.experiments import deep_gp_regression, table1, table2

EXPERIMENTS: tuple[ModuleType, ...] = (table1, table2, deep_gp_regression)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiments as subcommands, each with its own options."""
    topics = parser.add_subparsers(title="experiments", metavar="experiment")
    for experiment in EXPERIMENTS:
        one = topics.add_parser(experiment.NAME, help=experiment.SUMMARY, description=experiment.__doc__)
        experiment.add_arguments(one)
        one.set_defaults(run=functools.partial(_run, experiment))


def _run(experiment: ModuleType, arguments: argparse.Namespace) -> int:
    try:
        return int(experiment.run(arguments))
    except (FileNotFoundError, FileExistsError, _exceptions.LapgradError) as error:
        print(f"lapgrad reproduce {experiment.NAME}: {error}", file=sys.stderr)
        return 1
