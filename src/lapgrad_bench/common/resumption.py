"""Starts the results file of a measuring command, or continues that of an interrupted run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lapgrad._exceptions import FileFormatError, OptionError
from lapgrad_bench.common.results import Kind, Results, Row


class UsageError(Exception):
    """Options contradict each other, or a file does not fit them."""


def load_results(kind: Kind, path: Path) -> Results:
    """Return the results of a file; a missing or wrong file is a UsageError."""
    try:
        return Results.load(path, kind)
    except (FileFormatError, FileNotFoundError) as error:
        raise UsageError(str(error)) from error


def start_or_resume(kind: Kind, arguments: argparse.Namespace, options: dict[str, object]) -> Results:
    """Return new results; with --resume those of the output file.

    Raises:
        UsageError: The file was written with other options, on another processor or with another torch.
    """
    new = Results(kind, arguments.command_line, options=options)
    if not arguments.resume or not Path(arguments.output).exists():
        return new
    old = load_results(kind, arguments.output)
    for what, there, here in (
        *((name, old.options.get(name), value) for name, value in options.items()),
        ("processor", old.machine.get("cpu", {}).get("model"), new.machine["cpu"]["model"]),
        ("torch", old.machine.get("torch", {}).get("version"), new.machine["torch"]["version"]),
    ):
        if there != here:
            raise UsageError(
                f"--resume: {arguments.output} was begun with other {what}: {there} there, {here} here. "
                "Use the same options on the same machine, or another --output"
            )
    if old.machine.get("commit") != new.machine["commit"]:
        print(
            f"{arguments.output} was begun with lapgrad {old.machine.get('commit')}, this is "
            f"{new.machine['commit']}",
            file=sys.stderr,
        )
    old.complete = False
    for facts in old.peers.values():  # A missing library may have been installed since.
        facts.pop("missing", None)
    return old


def load_or_start(
    kind: Kind, output: Path, resume: bool, list_options: Callable[[Row], Mapping[str, Any]]
) -> Results:
    """Return new results; with ``resume`` those of the output file, if it exists.

    Args:
        kind: Of the results.
        output: The file.
        resume: Whether a file that exists is continued; else it is an error.
        list_options: Returns the options of this run for a row of the file, which must have the same ones.
    """
    if not output.exists():
        return Results(kind)
    if not resume:
        raise FileExistsError(
            f"{output} is there already: --resume continues it, another --output starts anew."
        )
    results = Results.load(output, kind)
    for row in results.rows:
        for option, value in list_options(row).items():
            if row.get(option) != value:
                raise OptionError(
                    f"{output} was made with {option} {row.get(option)}, and this run has {option} {value}: "
                    f"use the same, or another --output."
                )
    return results


def write_results(results: Results, output: Path | None) -> None:
    """Write the results if there is an output file."""
    if output:
        results.write(output)


def report_interruption(arguments: argparse.Namespace, figures: int) -> None:
    """Print to stderr that the run was interrupted, and how it can be resumed."""
    print("lapgrad bench: interrupted", file=sys.stderr)
    if arguments.output:
        print(
            f"{figures} figures are in {arguments.output}; the same command with --resume continues",
            file=sys.stderr,
        )


def warn_when_busy() -> None:
    """Warn on stderr if other processes use the cores: all times would be wrong."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.5 * cores:
        print(f"this machine is busy (load {load:.1f} on {cores} cores): expect odd figures", file=sys.stderr)
