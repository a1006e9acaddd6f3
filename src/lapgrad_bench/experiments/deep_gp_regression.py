"""Deep Gaussian process regression against the sparse one, on the same splits, with as many inducing inputs.

Each fold keeps a tenth of the data for the test. The sparse process learns by L-BFGS on its bound over all
data, the deep one by Adam on minibatches; both have RBF kernels with one lengthscale per input. Root mean
squared error (RMSE) and mean log density (TLL) are in the units of the targets. Results are written after
each model: --resume continues an interrupted run.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models import DeepGPRegression, SparseGPRegression
from lapgrad_bench import datasets
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.option_values import parse_number
from lapgrad_bench.common.progress import ShowProgress, format_duration, show_progress
from lapgrad_bench.common.results import Row
from lapgrad_bench.common.resumption import load_or_start
from lapgrad_bench.experiments import folds
from lapgrad_bench.experiments.interruption import catch_stop_signals

NAME: Final = "deep_gp_regression"
SUMMARY = "deep Gaussian process regression against the sparse one"

_FILE = f"{NAME}.json"
_DATASETS = ("kin8nm", "power")
_MODELS = ("sparse", "deep")

#: Called with the step and the loss; True stops the training.
Report = Callable[[int, float], bool]


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison; --resume needs the same ones.

    Attributes:
        inducing: Inducing inputs, of each layer.
        layers: Layers of the deep model; inner ones are as wide as the inputs.
        steps: Minibatches of the deep model.
        batch: Rows in each of them.
        samples: That go through the layers in each step.
        lr: Learning rate of the deep model.
        evaluations: Of the bound of the sparse model, at most.
        seed: Of the order of the data, of the inducing inputs and of the minibatches.
        dtype: A key of ``folds.DTYPES``.
    """

    inducing: int = 100
    layers: int = 2
    steps: int = 5000
    batch: int = 1000
    samples: int = 1
    lr: float = 0.01
    evaluations: int = 500
    seed: int = 0
    dtype: str = "float64"


@dataclass(frozen=True)
class Case:
    """One model on one split."""

    dataset: str
    fold: int
    model: str

    def __str__(self) -> str:
        return f"{self.dataset}, fold {self.fold + 1}, {self.model}"


_LEARNING = 0.97
"""The part of the time of a case that is training, about; the rest is its test."""


class _Interrupted(Exception):  # noqa: N818  (no error: a request)
    pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad reproduce deep_gp_regression`."""
    default = Settings()
    what = parser.add_argument_group("what is learned")
    what.add_argument("--data-dir", type=Path, help="where the data files are [LAPGRAD_DATA]")
    what.add_argument("--datasets", nargs="+", choices=list(datasets.TASKS), default=list(_DATASETS))
    what.add_argument("--folds", type=folds.parse_folds, default=3, help=f"how many of {folds.PARTS} [3]")
    what.add_argument("--inducing", type=parse_number, default=default.inducing, help="[%(default)s]")
    what.add_argument("--layers", type=parse_number, default=default.layers, help="[%(default)s]")
    how = parser.add_argument_group("how")
    how.add_argument("--steps", type=parse_number, default=default.steps, help="minibatches [%(default)s]")
    how.add_argument("--batch", type=parse_number, default=default.batch, help="rows in each [%(default)s]")
    how.add_argument(
        "--samples", type=parse_number, default=default.samples, help="in each step [%(default)s]"
    )
    how.add_argument("--lr", type=float, default=default.lr, help="of the deep model [%(default)s]")
    how.add_argument(
        "--evaluations",
        type=parse_number,
        default=default.evaluations,
        help="of the sparse model [%(default)s]",
    )
    how.add_argument("--seed", type=int, default=default.seed, help="[%(default)s]")
    how.add_argument("--dtype", choices=list(folds.DTYPES), default=default.dtype, help="[%(default)s]")
    where = parser.add_argument_group("where")
    where.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    where.add_argument("--output", type=Path, default=Path(_FILE), help=f"the results [{_FILE}]")
    where.add_argument("--resume", action="store_true", help="continue the run in --output")


def run(arguments: argparse.Namespace) -> int:
    """Learn, write and print results; return the exit code."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise _exceptions.DeviceError("--device cuda: torch finds no GPU.")
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(arguments, name) for name in names})
    data = {name: datasets.load(name, arguments.data_dir) for name in arguments.datasets}
    wanted = [
        Case(name, fold, model)
        for fold in range(arguments.folds)
        for name in arguments.datasets
        for model in _MODELS
    ]
    output = arguments.output / _FILE if arguments.output.is_dir() else arguments.output
    results = load_or_start(NAME, output, arguments.resume, lambda _: dataclasses.asdict(settings))
    results.command, results.complete = getattr(arguments, "command_line", ""), False
    present = {_read_case(row) for row in results.rows}
    with catch_stop_signals() as request, show_progress(_estimate_share(present, wanted)) as show:
        for case in wanted:
            if case in present or request:
                continue
            report = _make_callback(
                case, settings, _estimate_share(present, wanted), len(wanted), show, lambda: bool(request)
            )
            try:
                row = learn_case(case, settings, data[case.dataset], arguments.device, report)
            except _Interrupted:
                break
            present.add(case)
            results.rows.append(row)
            results.bars = list_bars(results.rows)
            results.write(output)
            text = f"{case}: RMSE {row['rmse']:.4g}, TLL {row['tll']:.4f}, {format_duration(row['seconds'])}"
            show(_estimate_share(present, wanted), text, line=True)
    results.complete = present >= set(wanted)
    results.write(output)
    text_tables.print_table(make_table(results.rows), SUMMARY)
    print(f"results: {output}")
    if request:
        print("Interrupted: the same command with --resume continues.", file=sys.stderr)
    return request.exit_code


def learn_case(
    case: Case, settings: Settings, data: tuple[Tensor, Tensor], device: str, report: Report
) -> dict[str, Any]:
    """Learn one model on one split and test it; return the row of the results.

    Args:
        case: The model and the split.
        settings: How to learn.
        data: All inputs (n, d) and targets (n,).
        device: Where to compute.
        report: Called every few steps with the step and the loss; True stops the training.
    """
    X, y = (values.to(device, folds.DTYPES[settings.dtype]) for values in data)
    train, test = (rows.to(device) for rows in folds.split_rows(len(X), case.fold, settings.seed))
    seed = settings.seed + case.fold
    stopped = False

    def callback(step: int, loss: float) -> bool:
        nonlocal stopped
        stopped = report(step, loss)
        return stopped

    began = time.perf_counter()
    model: SparseGPRegression | DeepGPRegression
    if case.model == "sparse":
        model = SparseGPRegression(
            X[train], y[train], inducing=settings.inducing, init="kmeans++", normalise=True, generator=seed
        )
        steps = model.fit("lbfgs", steps=settings.evaluations, callback=callback).steps
    else:
        widths = [X.shape[1]] * (settings.layers - 1)
        model = DeepGPRegression(
            X[train], y[train], widths=widths, inducing=settings.inducing, init="kmeans++", generator=seed
        )
        steps = model.fit(
            steps=settings.steps,
            batch=settings.batch,
            samples=settings.samples,
            lr=settings.lr,
            generator=seed,
            callback=callback,
        ).steps
    if stopped:
        raise _Interrupted
    seconds = time.perf_counter() - began
    with torch.no_grad():
        mean = model.predict(X[test]).mean
        density = model.log_prob(X[test], y[test]).double().mean().item()
        loss = model.loss().item()
    return {
        **dataclasses.asdict(case),
        **dataclasses.asdict(settings),
        "rmse": (mean - y[test]).double().square().mean().sqrt().item(),
        "tll": density,
        "noise": model.noise_var.item(),
        "loss": loss,
        "seconds": seconds,
        "seconds_per_step": seconds / steps,
        "steps_made": steps,
        "rows": len(train),
        "device": device,
        "threads": torch.get_num_threads(),
    }


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of both models on one data set: its means over the folds that both have."""

    dataset: str
    name: str
    count: int
    sparse: float
    deep: float

    @property
    def passed(self) -> bool:
        """Whether the deep model is at least as good."""
        return self.deep <= self.sparse if self.name == "RMSE" else self.deep >= self.sparse


def compare_models(rows: Sequence[Row]) -> Iterator[ComparedFigure]:
    """Return RMSE and TLL of both models for each data set."""
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = {_read_case(row): row for row in rows if row["dataset"] == dataset}
        pairs = [
            (own[dataclasses.replace(case, model="sparse")], own[case])
            for case in own
            if case.model == "deep" and dataclasses.replace(case, model="sparse") in own
        ]
        for name in ("RMSE", "TLL") if pairs else ():
            sparse, deep = (
                statistics.fmean(row[name.lower()] for row in rows) for rows in zip(*pairs, strict=True)
            )
            yield ComparedFigure(dataset, name, len(pairs), sparse, deep)


def make_table(rows: Sequence[Row]) -> text_tables.Table:
    """Return a table with a line per figure: sparse, deep, and whether the deep model is at least as good."""
    headings = ["data", "folds", "", "sparse", "deep", ""]
    lines = [
        [
            each.dataset,
            str(each.count),
            each.name,
            f"{each.sparse:.4g}",
            f"{each.deep:.4g}",
            "pass" if each.passed else "MISS",
        ]
        for each in compare_models(rows)
    ]
    return headings, lines


def list_bars(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures to be reached: those of the sparse model."""
    return [
        {
            "what": f"{each.dataset}, {each.name} of the deep model, mean of {each.count} folds",
            "wanted": each.sparse,
            "sense": "<=" if each.name == "RMSE" else ">=",
            "figure": each.deep,
            "unit": "",
            "passed": each.passed,
        }
        for each in compare_models(rows)
    ]


def _make_callback(
    case: Case, settings: Settings, done: float, count: int, show: ShowProgress, stop: Callable[[], bool]
) -> Report:
    """Return a callback that shows the progress of a model and returns whether to stop."""
    steps = settings.steps if case.model == "deep" else settings.evaluations

    def report(step: int, loss: float) -> bool:
        show(done + _LEARNING * min(1.0, step / steps) / count, f"{case}: step {step}, loss {loss:.6g}")
        return stop()

    return report


def _estimate_share(present: set[Case], wanted: Sequence[Case]) -> float:
    return sum(case in present for case in wanted) / len(wanted)


def _read_case(row: Row) -> Case:
    return Case(str(row["dataset"]), int(row["fold"]), str(row["model"]))
