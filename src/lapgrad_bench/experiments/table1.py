"""Table 1 of the paper: sparse Gaussian process regression on four tables of measurements.

The kernel is RBF with one lengthscale per input. Kernel, noise, mean and inducing inputs are learned by 3000
steps of Adam with rate 1e-2 from 90 % of the data; the step with the least criterion is tested on the other
10 %. Root mean squared error (RMSE) and mean log density (TLL) are in the units of the targets; means and
standard deviations are over folds. Results are written after each fold: --resume continues an interrupted
run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import torch

from lapgrad import _exceptions
from lapgrad_bench import datasets
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.option_values import make_names_parser, parse_number, parse_numbers, parse_positive
from lapgrad_bench.common.progress import format_duration, show_progress
from lapgrad_bench.common.results import Results
from lapgrad_bench.common.resumption import load_or_start
from lapgrad_bench.experiments import folds, quality, workers
from lapgrad_bench.experiments.folds import Fold, LearningOptions
from lapgrad_bench.experiments.interruption import StopRequest, catch_stop_signals
from lapgrad_bench.experiments.workers import Event, Finished, Progress, Work

NAME: Final = "table1"
SUMMARY = "sparse Gaussian processes: errors and densities on four data sets"

_LR = {"adam": 1e-2, "lbfgs": 1.0}
_FILE = "table1.json"
_LEARNING = 0.98
"""The part of the time of a fold that is training, about; the rest is its test."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad reproduce table1`."""
    what = parser.add_argument_group("what is learned")
    what.add_argument("--data-dir", type=Path, help="where the data files are [LAPGRAD_DATA]")
    known = ",".join(datasets.TASKS)
    what.add_argument(
        "--datasets", type=make_names_parser(datasets.TASKS), default=list(datasets.TASKS), help=f"[{known}]"
    )
    what.add_argument(
        "--inducing", type=parse_numbers, default=[50, 3200], help="numbers of inducing inputs [50,3200]"
    )
    what.add_argument(
        "--folds", type=folds.parse_folds, default=folds.PARTS, help=f"how many of {folds.PARTS} [all]"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--optimizer", choices=list(_LR), default="adam", help="[adam]; lbfgs goes further")
    how.add_argument("--steps", type=parse_number, default=3000, help="evaluations of the criterion [3000]")
    how.add_argument("--lr", type=parse_positive, help="step rate of Adam [1e-2], first step of L-BFGS [1]")
    how.add_argument(
        "--lr-end", type=parse_positive, help="what Adam's falls to, by one factor per step [--lr]"
    )
    how.add_argument("--seed", type=int, default=0, help="of the folds and of the inducing inputs [0]")
    how.add_argument("--dtype", choices=list(folds.DTYPES), default="float64", help="of the data [float64]")
    how.add_argument("--jitter", type=parse_positive, help="of the kernel matrix [1e-6, naval: 1e-8]")
    how.add_argument(
        "--init",
        choices=["kmeans++", "greedy", "random"],
        default="kmeans++",
        help="choice of inducing inputs [kmeans++]; greedy is by conditional variance",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    where.add_argument("--threads", type=parse_number, help="of all folds together [torch's]")
    where.add_argument(
        "--workers", type=parse_number, default=1, help="folds side by side, in processes of their own [1]"
    )
    where.add_argument(
        "--output", type=Path, default=Path(_FILE), help=f"the results: a file or a folder [{_FILE}]"
    )
    where.add_argument("--resume", action="store_true", help="continue the run in --output")


def run(arguments: argparse.Namespace) -> int:
    """Learn, write and print results; return the exit code."""
    path = arguments.output
    output = path / _FILE if path.is_dir() or path.suffix == "" else path
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise _exceptions.DeviceError("--device cuda: torch finds no GPU.")
    if arguments.lr_end is not None and arguments.optimizer != "adam":
        raise _exceptions.OptionError("--lr-end is Adam's: L-BFGS finds the length of its steps itself.")
    options = LearningOptions(
        optimizer=arguments.optimizer,
        steps=arguments.steps,
        lr=arguments.lr or _LR[arguments.optimizer],
        seed=arguments.seed,
        dtype=arguments.dtype,
        jitter=arguments.jitter,
        lr_end=arguments.lr_end,
        init=arguments.init,
    )
    sizes = {name: len(datasets.load(name, arguments.data_dir)[0]) for name in arguments.datasets}
    wanted = [
        Fold(name, inducing, fold)
        for inducing in arguments.inducing
        for fold in range(arguments.folds)
        for name in arguments.datasets
    ]
    results = load_or_start(
        NAME, output, arguments.resume, lambda row: vars(options.adapt_to_task(row["dataset"]))
    )
    results.command = getattr(arguments, "command_line", "")
    present = {_read_fold(row) for row in results.rows}
    threads = arguments.threads or torch.get_num_threads()
    work = Work(
        tuple(fold for fold in wanted if fold not in present),
        options,
        arguments.data_dir,
        arguments.device,
        output.with_name(f"{output.name}.checkpoints"),
        max(1, threads // min(arguments.workers, max(1, len(wanted)))),
    )
    run = _Run(
        results, output, {fold: _estimate_cost(fold, sizes[fold.dataset]) for fold in wanted}, options.steps
    )
    with catch_stop_signals() as request:
        run.learn(work, arguments.workers, present, request)
    rows = [row for row in results.rows if _read_fold(row) in set(wanted)]
    results.complete = {_read_fold(row) for row in rows} >= set(wanted)
    results.bars = quality.list_bars(results.rows)
    results.write(output)
    _remove_if_empty(work.checkpoints)
    _print_results(results, output)
    if request:
        print("Interrupted: the same command with --resume continues.", file=sys.stderr)
        return request.exit_code
    return 0 if results.complete else 1


class _Run:
    """Learns folds, writes the results of finished ones, and shows progress.

    Args:
        results: The envelope; rows are added.
        output: Its file.
        costs: How much work each fold is, in any unit.
        steps: Steps of each fold.
    """

    def __init__(self, results: Results, output: Path, costs: dict[Fold, float], steps: int) -> None:
        self.results, self.output, self.costs, self.steps = results, output, costs, steps
        self.parts: dict[Fold, float] = {}

    def learn(self, work: Work, count: int, present: set[Fold], request: StopRequest) -> None:
        """Learn the folds that have no results yet."""
        self.parts = {fold: 1.0 for fold in self.costs if fold in present}
        self.results.complete = False
        with show_progress(self._compute_done()) as show:

            def handle(event: Event) -> None:
                line = False
                if isinstance(event, Progress):
                    self.parts[event.fold] = _LEARNING * event.steps / self.steps
                    text = f"{event.fold}: step {event.steps}"
                    if event.loss is not None:
                        text += f", loss {event.loss:.6g}"
                elif isinstance(event, Finished):
                    self.parts[event.fold], line = 1.0, True
                    self.results.rows.append(event.row)
                    self.results.bars = quality.list_bars(self.results.rows)
                    self.results.write(self.output)
                    row = event.row
                    text = (
                        f"{event.fold}: RMSE {row['rmse']:.4g}, TLL {row['tll']:.4f}, "
                        f"{format_duration(row['seconds'])}, {1e3 * row['seconds_per_step']:.3g} ms per step"
                    )
                else:
                    self.parts[event.fold], line = 1.0, True
                    text = f"{event.fold} FAILED: {event.message}"
                show(self._compute_done(), text, line=line)

            workers.run_folds(work, count, handle, lambda: bool(request))

    def _compute_done(self) -> float:
        total = sum(self.costs.values())
        return sum(self.costs[fold] * part for fold, part in self.parts.items()) / total


def _print_results(results: Results, output: Path) -> None:
    if results.rows:
        text_tables.print_table(
            quality.make_table(results.rows), "sparse Gaussian processes against the paper", keys=4
        )
    for sentence in quality.list_remarks(results.rows):
        print(sentence)
    print(f"results: {output}")


def _read_fold(row: dict[str, object]) -> Fold:
    return Fold(str(row["dataset"]), int(str(row["inducing"])), int(str(row["fold"])))


def _estimate_cost(fold: Fold, rows: int) -> float:
    """Return roughly the flops of a step; evaluating one entry of the kernel matrix counts as 200."""
    U = fold.inducing
    return 4.0 * rows * U * (U + 50.0) + 10 / 3 * U**3


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
