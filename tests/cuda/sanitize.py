"""Every kernel under NVIDIA's compute-sanitizer: memcheck, racecheck and initcheck.

    python tests/cuda/sanitize.py [--tools racecheck] [--groups cholesky filters]

Groups of ``every_kernel.py`` run first without a tool, which compiles their kernels, then under each tool;
several processes share the GPU. Fails on any report about a kernel of lapgrad, and under memcheck on any
report at all. What racecheck and initcheck have to say about kernels of torch and of NVIDIA's libraries is
counted, and no more: those use means of synchronisation that the tools do not follow, and pad their operands.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAM = HERE / "every_kernel.py"

TOOLS = ("memcheck", "racecheck", "initcheck")
#: The exit status with which a tool says that it has reported something.
REPORTED = 77
#: Seconds for a group.
LIMIT = 200

_LINE = re.compile(r"^=========( ?)(.*)$")
_SUMMARY = re.compile(r"SUMMARY: (\d+)")
_FRAME = re.compile(r"(?:^ +at|access at) (?:void )?(?:_Z\d+)?([A-Za-z_][\w:]*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Report:
    """A finding of a tool: its first line, and the name of the function it is about ("" if none)."""

    title: str
    function: str


def read_reports(log: str) -> Iterator[Report]:
    """Yield the reports in a log, without the tool's other lines."""
    lines: list[str] = []
    for line in [*log.splitlines(), "========= end"]:
        matched = _LINE.match(line)
        if not matched:
            continue
        text = matched[2]
        if text.strip() and not text.startswith(" "):  # further lines of a report are indented
            if lines and not _is_frame_of_log(lines[0]):
                frame = _FRAME.search("\n".join(lines))
                yield Report(lines[0], frame[1] if frame else "")
            lines = [text]
        elif lines:
            lines.append(text)


def _is_frame_of_log(title: str) -> bool:
    return title == "COMPUTE-SANITIZER" or "SUMMARY:" in title


def list_own_functions() -> set[str]:
    """Return the names of lapgrad's kernels; mangled names begin with them, too."""
    import every_kernel

    return {name for _, name in every_kernel.list_kernels_of_sources()}


def is_own(report: Report, own: set[str]) -> bool:
    """Whether a report is about a kernel of lapgrad, or about no kernel: then lapgrad is the caller."""
    # A mangled name goes on with the letters of its arguments: syevdIdLi8E...
    name = report.function
    return not name or name in own or any(re.match(rf"{known}I[a-zA-Z]", name) for known in own)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of running a group under a tool."""

    group: str
    seconds: float
    own: Counter[Report]
    foreign: Counter[Report]
    failure: str = ""


def run(group: str, tool: str | None, sanitizer: str, own: set[str]) -> Outcome:
    """Run a group, under a tool or without one."""
    environment = dict(os.environ)
    command = [sys.executable, str(PROGRAM), group]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        if tool is not None:
            # Without torch's caching allocator each tensor has memory of its own: accesses
            # beyond its end are seen.
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
            options = f"--tool {tool} --error-exitcode {REPORTED} --print-limit 1000 --log-file {log}".split()
            if tool == "memcheck":
                # torch asks the driver for functions that it may not have, and takes "no" for an answer.
                options += ["--report-api-errors", "no"]
            command = [sanitizer, *options, *command]
        status, said = _run_command(command, environment)
        if status is None:
            return Outcome(group, LIMIT, Counter(), Counter(), f"took longer than {LIMIT} s\n{said[-3000:]}")
        text = log.read_text(errors="replace") if log.exists() else ""
    found = Counter(read_reports(text))
    mine = Counter({report: n for report, n in found.items() if tool == "memcheck" or is_own(report, own)})
    failure = ""
    # After a report the exit status is the tool's. What the program prints shows whether it reached its end.
    if status not in (0, REPORTED) or "launched" not in said:
        failure = f"ended with status {status}\n{said[-5000:]}{text[-2000:]}"
    elif tool is not None and not _SUMMARY.search(text):
        failure = f"the tool has written no summary\n{text[-2000:]}"
    elif status == REPORTED and not found:
        failure = f"the tool has reported something that is not understood here\n{text[-4000:]}"
    return Outcome(group, time.monotonic() - began, mine, found - mine, failure)


def _run_command(command: list[str], environment: dict[str, str]) -> tuple[int | None, str]:
    """Return exit status and output of a command; status None if it took too long and was killed."""
    with subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            return None, said


def _make_importable() -> None:
    """Put src/ on the path of this process and its children, if lapgrad is not installed."""
    sys.path.insert(0, str(HERE))
    if importlib.util.find_spec("lapgrad") is None:
        source = str(ROOT / "src")
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer: COMPUTE_SANITIZER, else from PATH, else of the CUDA toolkit."""
    places = [os.environ.get("COMPUTE_SANITIZER"), shutil.which("compute-sanitizer")]
    places += [
        f"{home}/bin/compute-sanitizer" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home
    ]
    return next((place for place in places if place and Path(place).exists()), None)


def main() -> int:
    """Run all tools on all groups; return 0 if they report nothing."""
    _make_importable()
    import every_kernel
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--groups", nargs="+", choices=every_kernel.GROUPS, default=list(every_kernel.GROUPS))
    parser.add_argument(
        "--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes that share the GPU"
    )
    chosen = parser.parse_args()
    sanitizer = find_sanitizer()
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device")
        return 2
    if sanitizer is None:
        print("no compute-sanitizer (it comes with the CUDA toolkit); COMPUTE_SANITIZER says where it is")
        return 2
    own = list_own_functions()
    bad = False
    for tool in (None, *chosen.tools):
        began = time.monotonic()
        with ThreadPoolExecutor(chosen.workers) as pool:
            outcomes = list(pool.map(run, chosen.groups, repeat(tool), repeat(sanitizer), repeat(own)))
        print(f"{tool or 'without a tool'}: {time.monotonic() - began:.0f} s", flush=True)
        for outcome in outcomes:
            print(f"  {outcome.group:24} {outcome.seconds:4.0f} s  {outcome.own.total()} reports", flush=True)
            for report, count in outcome.own.items():
                print(f"    {count} x {report.title} [{report.function}]")
            if outcome.foreign:
                functions = Counter(
                    dict.fromkeys(sorted(report.function[:60] for report in outcome.foreign), 1)
                )
                print(f"    {outcome.foreign.total()} about other libraries: {', '.join(functions)}")
            if outcome.failure:
                print(f"    {outcome.failure}")
            bad = bad or bool(outcome.own) or bool(outcome.failure)
        if tool is None and bad:
            return 1
    print("something was reported" if bad else "clean")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
