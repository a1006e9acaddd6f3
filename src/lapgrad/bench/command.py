"""The command `lapgrad bench ops`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from lapgrad.bench import report
from lapgrad.bench.bars import MANY_CORES, Bench, Machine, Verdict, bars, judge
from lapgrad.bench.cases import OPERATORS, Case, Shape, dtype_name
from lapgrad.bench.runner import PHASES, Measurement, Phase, measure

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_SIZES = "64,256,1024,2048"
_BATCHES = "1000x8x8,10000x4x4,200x64x64"
_QUICK_SIZES = "64,256"
_QUICK_BATCHES = "1000x8x8"
_QUICK_SECONDS = 0.05

_Item = TypeVar("_Item")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lapgrad bench ops`."""
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--ops", type=_names, default=list(OPERATORS), help="operators, separated by commas [all]"
    )
    what.add_argument("--sizes", type=_shapes, help=f"single matrices: 512 or 512x64 [{_SIZES}]")
    what.add_argument("--batches", type=_shapes, help=f"batches: 1000x8x8; none: '' [{_BATCHES}]")
    what.add_argument("--dtypes", type=_dtypes, default=list(_DTYPES.values()), help="[float64,float32]")
    what.add_argument(
        "--phases",
        type=_phases,
        default=["forward", "backward"],
        help="forward (no gradient asked for), backward, step (both, with a new graph) [forward,backward]",
    )
    what.add_argument(
        "--threads",
        type=_threads,
        default=[torch.get_num_threads()],
        help="numbers of threads; 'all': 1, 2, 4, ...; several also give a scaling table [torch's]",
    )
    what.add_argument(
        "--bars",
        nargs="?",
        const="auto",
        choices=["auto", "few-cores", "many-cores", "cuda"],
        help="measure the figures the operators have to reach instead, and compare",
    )
    what.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    what.add_argument("--seconds", type=float, help="per case and phase [1]")
    what.add_argument(
        "--quick", action="store_true", help="few sizes, little time: to see that all of it runs"
    )
    output = parser.add_argument_group("what becomes of it")
    output.add_argument("--output", type=Path, help="write figures and machine to this JSON file")
    output.add_argument("--markdown", action="store_true", help="print a shorter table, in Markdown")
    output.add_argument("--strict", action="store_true", help="with --bars: exit code 1 when a bar is missed")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes; returns the exit code."""
    seconds = arguments.seconds or (_QUICK_SECONDS if arguments.quick else 1.0)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"lapgrad bench: --device cuda: torch {torch.__version__} sees no CUDA device", file=sys.stderr)
        return 2
    _warn_when_busy()
    if arguments.bars:
        return _run_bars(arguments, seconds)
    sizes, batches = arguments.sizes, arguments.batches
    if sizes is None:
        sizes = _shapes(_QUICK_SIZES if arguments.quick else _SIZES)
    if batches is None:
        batches = _shapes(_QUICK_BATCHES if arguments.quick else _BATCHES)
    cases = [
        Case(OPERATORS[name], shape, dtype, torch.device(arguments.device))
        for name, shape, dtype in itertools.product(arguments.ops, [*sizes, *batches], arguments.dtypes)
    ]
    measurements: list[Measurement] = []
    for case, threads in _announced(list(itertools.product(cases, arguments.threads))):
        measurements += measure(case, arguments.phases, threads, seconds)
    if arguments.markdown:
        print(report.markdown(report.short_table(measurements)))
        print(f"\n{report.circumstances(arguments.threads, arguments.device)}")
    else:
        report.show(report.timing_table(measurements), "lapgrad against torch")
    if len(arguments.threads) > 1:
        _print(report.scaling_table(measurements), "scaling of lapgrad with threads", arguments.markdown)
    if arguments.output:
        report.write_json(arguments.output, measurements)
    return 0


def _run_bars(arguments: argparse.Namespace, seconds: float) -> int:
    threads = arguments.threads[-1]
    machine: Machine = "many-cores" if threads >= MANY_CORES else "few-cores"
    if arguments.device == "cuda":
        machine = "cuda"
    if arguments.bars != "auto":
        machine = arguments.bars
    bench = Bench(threads, seconds, torch.device(arguments.device))
    wanted = [bar for bar in bars(machine) if bar.what.split()[0] in arguments.ops]
    verdicts: list[Verdict] = [judge(bar, bench) for bar in _announced(wanted)]
    passed = sum(verdict.passed for verdict in verdicts)
    where = machine if machine == "cuda" else f"{machine}, {threads} threads"
    title = f"{where}: {passed} of {len(verdicts)} bars reached"
    _print(report.bars_table(verdicts), title, arguments.markdown)
    if arguments.output:
        report.write_json(arguments.output, list(bench.measured.values()), verdicts)
    return 1 if arguments.strict and passed < len(verdicts) else 0


def _warn_when_busy() -> None:
    """Threads that wait for a core spoil every figure: say so before an hour is spent on them."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.5 * cores:
        print(f"this machine is busy (load {load:.1f} on {cores} cores): expect odd figures", file=sys.stderr)


def _print(table: report.Table, title: str, markdown: bool) -> None:
    if markdown:
        print(report.markdown(table))
    else:
        report.show(table, title)


def _announced(items: list[_Item]) -> Iterator[_Item]:
    """Says on stderr, where that is a terminal, what is being measured."""
    show = sys.stderr.isatty()
    for i, item in enumerate(items, 1):
        if show:
            what = getattr(item, "what", None) or str(item[0] if isinstance(item, tuple) else item)
            print(f"\r\033[K{i}/{len(items)} {what}", end="", file=sys.stderr, flush=True)
        yield item
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


# Option values. argparse turns an ArgumentTypeError into a usage message.


def _names(text: str) -> list[str]:
    return _known(text, OPERATORS)


def _phases(text: str) -> list[Phase]:
    return [phase for phase in PHASES if phase in _known(text, PHASES)]


def _dtypes(text: str) -> list[torch.dtype]:
    return [_DTYPES[name] for name in _known(text, map(dtype_name, _DTYPES.values()))]


def _known(text: str, names: Iterable[str]) -> list[str]:
    known = list(names)
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    for name in chosen:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    return chosen


def _shapes(text: str) -> list[Shape]:
    try:
        return [Shape.parse(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _threads(text: str) -> list[int]:
    if text == "all":
        most = torch.get_num_threads()
        return sorted({min(2**k, most) for k in range(most.bit_length() + 1)})
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of thread counts: 1,2,4 or all was wanted")
    return counts
