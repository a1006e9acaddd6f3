"""The command `lapgrad`: info, demo, bench, reproduce, report."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from lapgrad import __version__, info
from lapgrad.bench import acceleration, exact_gp, models_command, sparse_gp
from lapgrad.bench import command as bench
from lapgrad.bench.results import typed
from lapgrad.demo import command as demo
from lapgrad.experiments import command as reproduce
from lapgrad.report import command as report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    chosen.command_line = typed(list(sys.argv[1:] if arguments is None else arguments))
    run: Callable[[argparse.Namespace], int] | None = getattr(chosen, "run", None)
    if run is None:
        parser.print_help()
        return 2
    try:
        return run(chosen)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    purpose = "Differentiable BLAS and LAPACK operators for PyTorch."
    version = f"lapgrad {__version__}"
    parser = argparse.ArgumentParser(prog="lapgrad", description=purpose)
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="command")

    about = commands.add_parser("info", help="versions, CPU, BLAS, threads, CUDA")
    about.add_argument("--json", action="store_true", help="print JSON")
    about.set_defaults(run=_info)

    shown = commands.add_parser(
        "demo", help="a tour: fit a Gaussian process to measurements of CO2; or an example: demo list"
    )
    demo.add_arguments(shown)
    shown.set_defaults(run=demo.run)

    timed = commands.add_parser("bench", help="time operators and models against others")
    topics = timed.add_subparsers(title="topics", metavar="topic", required=True)
    operators = topics.add_parser("ops", help="forward and backward of every operator")
    bench.add_arguments(operators)
    operators.set_defaults(run=bench.run)
    models = topics.add_parser("models", help="criteria of models, against GPyTorch, GPy, GPflow and torch")
    models_command.add_arguments(models)
    models.set_defaults(run=models_command.run)
    exact = topics.add_parser("gp", help="the criterion of Gaussian process regression")
    exact_gp.add_arguments(exact)
    exact.set_defaults(run=exact_gp.run)
    sparse = topics.add_parser("sgp", help="the criterion of a sparse Gaussian process")
    sparse_gp.add_arguments(sparse)
    sparse.set_defaults(run=sparse_gp.run)
    accelerated = topics.add_parser(
        "accelerate", help="torch's functions with and without acceleration: the table that it decides by"
    )
    acceleration.add_arguments(accelerated)
    accelerated.set_defaults(run=acceleration.run)

    repeated = commands.add_parser("reproduce", help="repeat an experiment of the paper, from its data")
    reproduce.add_arguments(repeated)

    written = commands.add_parser("report", help="one HTML page from the results of benchmarks")
    report.add_arguments(written)
    written.set_defaults(run=report.run)
    return parser


def _info(arguments: argparse.Namespace) -> int:
    print(json.dumps(info.collect(), indent=1, default=str) if arguments.json else info.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
