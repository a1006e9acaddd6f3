"""``python -m lapgrad script.py [arguments]`` runs a script accelerated; other arguments are commands."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import lapgrad


def run(arguments: Sequence[str]) -> int:
    """Run a script (a file, or ``-m`` and a module) under ``lapgrad.accelerate()``, or a command.

    Returns:
        The exit code of the command; 0 after a script, which may also exit by itself.
    """
    if len(arguments) > 1 and arguments[0] == "-m":
        lapgrad.accelerate()
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    if arguments and Path(arguments[0]).is_file():
        lapgrad.accelerate()
        sys.argv = list(arguments)
        # As for `python script.py`, the script finds modules beside it.
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    if arguments and arguments[0].endswith(".py"):
        print(f"lapgrad: there is no script {arguments[0]}", file=sys.stderr)
        return 2
    from lapgrad import cli

    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
