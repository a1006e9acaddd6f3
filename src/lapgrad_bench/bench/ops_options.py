"""The options of `lapgrad bench ops`, and what other commands share of them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lapgrad_bench.bench.ops.cases import OPERATORS, name_dtype
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops.plan import BATCHES, DTYPES, QUICK_BUDGET, SECONDS, SIZES
from lapgrad_bench.bench.ops.runner import PHASES, Phase
from lapgrad_bench.bench.peers.client import LIBRARIES, TIMEOUT, PeerSpec
from lapgrad_bench.bench.watched.watchdog import PATIENCE
from lapgrad_bench.common.option_values import make_names_parser
from lapgrad_bench.common.resumption import UsageError

PEERS_TITLE = "against group (besides torch)"
"""Title of the group of options that name other libraries."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: what is measured, against which libraries, and where the results go."""
    what = parser.add_argument_group("what is measured")
    what.add_argument("--ops", type=parse_operators, help="operators, separated by commas [all]")
    what.add_argument("--sizes", type=_parse_shapes, help=f"single matrices: 512 or 512x64 [{SIZES}]")
    what.add_argument("--batches", type=_parse_shapes, help=f"batches: 1000x8x8; none: '' [{BATCHES}]")
    what.add_argument("--dtypes", type=parse_dtypes, help="[float64,float32]")
    what.add_argument(
        "--phases",
        type=parse_phases,
        help="forward (no gradient asked for), backward, step (both, with a new graph) [forward,backward]",
    )
    what.add_argument(
        "--threads",
        type=_parse_threads,
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
    what.add_argument("--seconds", type=parse_positive, help=f"per case and phase [{SECONDS:g}]")
    what.add_argument(
        "--quick",
        action="store_true",
        help="a selection: decompositions and products over n, a few batches, all other operators at one "
        "size in float64; cases that do not fit the --budget are left out and counted",
    )
    what.add_argument(
        "--budget",
        type=parse_positive,
        metavar="SECONDS",
        help="start no case after this time; those that matter most come first "
        f"[with --quick {QUICK_BUDGET:g} for each library that lapgrad is compared with; else none]",
    )
    group = parser.add_argument_group(PEERS_TITLE)
    add_peers(group)
    group.add_argument(
        "--compare",
        type=Path,
        metavar="OLD",
        help="flag what got more than 15 %% slower, counted in products of matrices, than in this results "
        "file (exit code 1); the cases of the file are measured unless others are asked for",
    )
    group.add_argument(
        "--with", type=Path, dest="with_file", metavar="NEW", help="with --compare: this file, nothing is run"
    )
    add_give_up(parser, PATIENCE, "Large cases have more: the time of their flops at 1 Gflop/s. ")
    output = parser.add_argument_group("what becomes of it")
    output.add_argument("--output", type=Path, help="results file (JSON), written after every case")
    output.add_argument("--resume", action="store_true", help="continue an interrupted --output file")
    output.add_argument("--plots", type=Path, metavar="DIR", help="time over n, as PNG and SVG")
    output.add_argument("--markdown", action="store_true", help="print a shorter table, in Markdown")
    output.add_argument("--strict", action="store_true", help="with --bars: exit code 1 when a bar is missed")


def check_common_options(arguments: argparse.Namespace) -> None:
    """Raise a UsageError for options that contradict each other or need what is not there."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device cuda: torch {torch.__version__} sees no CUDA device")
    if arguments.resume and not arguments.output:
        raise UsageError("--resume needs the file to continue: --output FILE")
    if arguments.output and arguments.output.is_dir():
        raise UsageError(f"--output {arguments.output} is a folder: name a file in it")
    if arguments.plots and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plots needs matplotlib: pip install 'lapgrad[bench]'")
    names = [spec.library for spec in arguments.peer or ()]
    if len(set(names)) < len(names):
        raise UsageError(f"--peer: {', '.join(names)}: each library can be named once")


def add_peers(group: Any) -> None:
    """Add --peer and --peer-timeout to a group of a parser (argparse has no public name for its type)."""
    group.add_argument(
        "--peer",
        type=make_peer_parser(LIBRARIES),
        action="append",
        default=[],
        metavar="NAME[=PYTHON]",
        help=f"{', '.join(LIBRARIES)}: with the Python that has it (jax=/path/to/python), or this one",
    )
    group.add_argument(
        "--peer-timeout",
        type=parse_positive,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"after which a peer that does not answer is given up [{TIMEOUT:g}]",
    )


def add_give_up(parser: argparse.ArgumentParser, patience: float, more: str = "") -> None:
    """Add the option --give-up; `more` is added to its help text."""
    parser.add_argument_group("when a call hangs").add_argument(
        "--give-up",
        type=parse_seconds,
        default=patience,
        metavar="SECONDS",
        help="after which a call of torch or lapgrad that has not returned is given up: torch is then left "
        f"out of the case, and named. {more}0: never, "
        f"and all is measured in this process, for profilers and debuggers [{patience:g}]",
    )


# Parsers of options. argparse turns an ArgumentTypeError into a usage message.


parse_operators = make_names_parser(OPERATORS)


def parse_phases(text: str) -> list[Phase]:
    """Return the phases of a list with commas, in the order in which they are timed."""
    chosen = make_names_parser(PHASES)(text)
    return [phase for phase in PHASES if phase in chosen]


def parse_dtypes(text: str) -> list[torch.dtype]:
    """Return the dtypes of a list with commas."""
    return [DTYPES[name] for name in make_names_parser(map(name_dtype, DTYPES.values()))(text)]


def _parse_shapes(text: str) -> list[Shape]:
    try:
        return Shape.parse_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def make_peer_parser(libraries: Sequence[str]) -> Callable[[str], PeerSpec]:
    """Return the parser of an option that names one of these libraries."""

    def parse(text: str) -> PeerSpec:
        try:
            return PeerSpec.parse(text, libraries)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def parse_seconds(text: str) -> float:
    """Return a number of seconds, which may be 0."""
    return 0.0 if text in ("0", "0.0") else parse_positive(text)


def parse_positive(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _parse_threads(text: str) -> list[int]:
    if text == "all":
        most = torch.get_num_threads()
        return sorted({min(2**k, most) for k in range(most.bit_length() + 1)})
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of thread counts: 1,2,4 or all was wanted")
    return counts
