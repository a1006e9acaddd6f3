"""The commands bench, reproduce and report of `lapgrad`."""

from __future__ import annotations

import argparse
from typing import Any

from lapgrad_bench.bench import acceleration, grid_command, models_command, ops_command, sweep_command
from lapgrad_bench.experiments import command as reproduce
from lapgrad_bench.report import command as report

#: What ``ArgumentParser.add_subparsers`` returns; argparse has no public name for it.
Subparsers = Any


def add_bench(commands: Subparsers) -> None:
    """Add `lapgrad bench` and its topics."""
    parser = commands.add_parser("bench", help="time operators and models against others")
    topics = parser.add_subparsers(title="topics", metavar="topic")
    parser.set_defaults(run=lambda _: print_topics(parser))
    for name, topic, help_text in (
        ("ops", ops_command, "forward and backward of every operator"),
        ("sweep", sweep_command, "every operator at random sizes: where others are faster"),
        ("models", models_command, "criteria of models, against GPyTorch, GPy, GPflow and torch"),
        ("accelerate", acceleration, "torch's functions with and without acceleration"),
        ("grid", grid_command, "an exact Gaussian process over several processes"),
    ):
        chosen = topics.add_parser(name, help=help_text)
        topic.add_arguments(chosen)
        chosen.set_defaults(run=topic.run)


def print_topics(parser: argparse.ArgumentParser) -> int:
    """Prints the help of a command that was typed without a topic; returns the exit code of a usage error."""
    parser.print_help()
    return 2


def add_reproduce(commands: Subparsers) -> None:
    """Add `lapgrad reproduce` and its experiments."""
    parser = commands.add_parser("reproduce", help="repeat an experiment of the paper, from its data")
    reproduce.add_arguments(parser)
    parser.set_defaults(run=lambda _: print_topics(parser))


def add_report(commands: Subparsers) -> None:
    """Add `lapgrad report`."""
    parser = commands.add_parser("report", help="one HTML page from the results of benchmarks")
    report.add_arguments(parser)
    parser.set_defaults(run=report.run)
