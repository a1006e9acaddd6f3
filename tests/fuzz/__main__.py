"""The command: attack every operator for some time, print failures and how to repeat them, and a summary."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fuzz.summary import Summary


def main() -> int:
    """0 if every result was right, 1 if one was not, or a case crashed or did not end."""
    options = _parse_arguments()
    if options.worker:
        from fuzz import worker  # which imports torch; the process that supervises does not need it

        worker.run(options)
        return 0
    if options.case:
        options.ops, _, number = options.case.rpartition(":")
        options.first, options.rounds = int(number), 1
    summary = Summary(verbose=bool(options.case))
    deadline = time.time() + options.seconds
    while died := _supervise(options, deadline, summary):
        # The others go on in a new process, after the case that ended this one.
        options.resume = died
    print(summary.table())
    return 1 if summary.failures else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="other cases (0)")
    parser.add_argument("--ops", default="", help="operators, separated by commas (all)")
    parser.add_argument("--largest", type=int, default=300, help="largest order (300)")
    parser.add_argument(
        "--rounds", type=int, default=0, help="cases of each operator, at most (0: as many as fit)"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a case hangs (120)")
    parser.add_argument("--case", default="", help="one case only, as OPERATOR:NUMBER")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--prelude", default="", help="Python code that each process runs first")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--resume", default="", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _supervise(options: argparse.Namespace, deadline: float, summary: Summary) -> str | None:
    """Run the cases in a process of their own. Returns the case that ended it, None if it went through.

    A process of its own, because a crash in compiled code ends it, and so does the watchdog if a case hangs.
    """
    command = [sys.executable, "-m", "fuzz", "--worker", f"--deadline={deadline}", f"--ops={options.ops}"]
    for name in ("seed", "largest", "rounds", "limit", "first", "resume", "prelude"):
        command.append(f"--{name}={getattr(options, name)}")
    current: str | None = None
    printed: list[str] = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("{"):  # MKL reports wrong arguments in this way, and goes on
            printed.append(f"printed: {line.rstrip()}")
            continue
        event: dict[str, Any] = json.loads(line)
        if "begin" in event:
            current = event["begin"]
        else:
            event["failures"] += printed
            printed.clear()
            summary.add(event, _repeat(options, event["case"]))
            current = None
    status = process.wait()
    if current is None and status == 0:
        return None
    if current is None:
        sys.exit(f"the process that runs the cases could not begin one (status {status})")
    what = f"crashed or hung (exit status {status}; the stacks are above)"
    summary.add({"case": current, "failures": [what], "description": ""}, _repeat(options, current))
    return current


def _repeat(options: argparse.Namespace, case: str) -> str:
    """Return the command that repeats one case."""
    words = ["python", "-m", "fuzz", "--seed", str(options.seed), "--case", case]
    if options.largest != 300:
        words += ["--largest", str(options.largest)]
    if options.prelude:
        words += ["--prelude", options.prelude]
    tests = Path(__file__).resolve().parents[1].name
    return f"PYTHONPATH={tests} {shlex.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
