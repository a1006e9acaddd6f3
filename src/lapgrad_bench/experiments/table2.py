"""Table 2 of the paper: deep Gaussian processes of MNIST, without labels.

Layers of sparse Gaussian processes with RBF kernels (one lengthscale per input) and recognition networks are
learned together on minibatches, by Adam, and by natural gradients for q(u). The figure is the mean log
density of the 10,000 test images, 784 pixels in [0, 1] with Gaussian noise, in nats, by importance sampling
with 1000 samples of the latent variables. With --preprocessing the model learns from pixels in other units;
the figures stay in those of [0, 1]. The paper does not say how many inducing inputs its figures took
(--inducing). Checkpoints are written during training: --resume continues an interrupted run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lapgrad import _exceptions
from lapgrad_bench.common import text_tables
from lapgrad_bench.common.option_values import parse_number, parse_positive
from lapgrad_bench.common.progress import ShowProgress, describe_time_left, format_duration, show_progress
from lapgrad_bench.common.results import Results
from lapgrad_bench.common.text_tables import Table
from lapgrad_bench.experiments import deep_run, mnist, plots_table2
from lapgrad_bench.experiments.deep_run import Limits, Row, Run, Settings
from lapgrad_bench.experiments.interruption import StopRequest, catch_stop_signals
from lapgrad_bench.experiments.paper import TABLE2

NAME = "table2"
SUMMARY = "deep Gaussian processes of images of digits: test log likelihood"

_ARCHITECTURES = tuple(TABLE2["SV-DGP"])
_STEPS = 20_000
_TEST_EVERY = {"cuda": 1.0, "cpu": math.inf}
"""Minutes between two tests during training, by device; on a CPU a test would take longer than that."""
_LEARNING = 0.95
"""The part of the time of an architecture that is training, about; the rest is the final test."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad reproduce table2`."""
    what = parser.add_argument_group("what is learned")
    what.add_argument("--data-dir", type=Path, help="where the data files are [LAPGRAD_DATA]")
    what.add_argument(
        "--arch",
        type=_parse_archs,
        default=list(_ARCHITECTURES),
        help=f"widths of layers, the top one first; several with commas [{','.join(_ARCHITECTURES)}]",
    )
    what.add_argument("--preprocessing", choices=mnist.PREPROCESSINGS, default="unit", help="[unit]")
    what.add_argument(
        "--inducing", type=parse_number, default=Settings.inducing, help=f"[{Settings.inducing}]"
    )
    what.add_argument(
        "--hidden",
        default=Settings.hidden,
        type=_parse_widths,
        help=f"hidden layers of recognition networks [{Settings.hidden}]",
    )
    what.add_argument("--images", type=parse_number, default=Settings.images, help="to learn from [60000]")
    how = parser.add_argument_group("how")
    how.add_argument("--minutes", type=parse_positive, help="how long each architecture is learned")
    how.add_argument("--steps", type=parse_number, help=f"how many steps [{_STEPS}, or what --minutes allow]")
    how.add_argument(
        "--batch", type=parse_number, default=Settings.batch, help=f"images per step [{Settings.batch}]"
    )
    how.add_argument(
        "--lr", type=parse_positive, default=Settings.lr, help=f"of Adam, at the start [{Settings.lr:g}]"
    )
    how.add_argument(
        "--natural",
        type=float,
        default=Settings.natural,
        help=f"length of natural gradient steps of q(u) at the start; 0: by Adam [{Settings.natural:g}]",
    )
    how.add_argument(
        "--annealing",
        type=int,
        default=Settings.annealing,
        help="steps in which latent variables get their weight [0]",
    )
    how.add_argument("--dtype", choices=list(deep_run.DTYPES), default=Settings.dtype, help="[float32]")
    how.add_argument("--seed", type=int, default=Settings.seed, help="[0]")
    test = parser.add_argument_group("test")
    test.add_argument(
        "--samples", type=parse_number, default=1000, help="of latent variables per image [1000]"
    )
    test.add_argument(
        "--refine",
        type=int,
        default=Limits.refine,
        help="steps of q(h_1 | y) of each test image on the bound, before its samples are drawn "
        f"[{Limits.refine}; 0: none]",
    )
    test.add_argument("--tests", type=parse_number, default=10_000, help="test images [10000]")
    test.add_argument(
        "--test-every",
        type=parse_positive,
        help="minutes between small tests on the way [1 on cuda, else none]",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    where.add_argument("--threads", type=parse_number, help="of the CPU [torch's]")
    where.add_argument("--output", type=Path, default=Path(NAME), help=f"a folder for all files [{NAME}]")
    where.add_argument("--resume", action="store_true", help="continue the run in --output")


def run(arguments: argparse.Namespace) -> int:
    """Learn, write and print results; return the exit code."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise _exceptions.DeviceError("--device cuda: torch finds no GPU.")
    for name in ("annealing", "refine"):
        if getattr(arguments, name) < 0:
            raise _exceptions.OptionError(f"--{name} must not be negative, got {getattr(arguments, name)}.")
    if not 0.0 <= arguments.natural < 1.0:
        raise _exceptions.OptionError(f"--natural must be in [0, 1), got {arguments.natural}.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for part in (
        "train",
        "test",
    ):  # Load the data first: a missing file must be reported before the first architecture is learned.
        mnist.load_images(part, arguments.data_dir)
    file = arguments.output / f"{NAME}.json"
    results = _load_or_start_results(file, arguments)
    results.command = getattr(arguments, "command_line", "")
    with catch_stop_signals() as request, show_progress(0.0) as show:
        for index, arch in enumerate(arguments.arch):
            if request or _test_architecture(results.rows, arch, arguments) is not None:
                continue
            _learn_architecture(arguments, arch, (index, len(arguments.arch)), results, file, request, show)
    results.complete = all(
        _test_architecture(results.rows, arch, arguments) is not None for arch in arguments.arch
    )
    results.write(file)
    _draw(results.rows, arguments.output)
    if _select_final_rows(results.rows):
        text_tables.print_table(
            make_table(results.rows), "deep Gaussian processes of MNIST against the paper"
        )
    print(f"results: {file}")
    if request:
        print("Interrupted: the same command with --resume continues.", file=sys.stderr)
        return request.exit_code
    return 0 if results.complete else 1


def _learn_architecture(
    arguments: argparse.Namespace,
    arch: str,
    place: tuple[int, int],
    results: Results,
    file: Path,
    request: StopRequest,
    show: ShowProgress,
) -> None:
    """Learn one architecture; its rows are added to the results, which are written during training."""
    names = {field.name for field in dataclasses.fields(Settings)} - {"arch"}
    settings = Settings(arch, **{name: getattr(arguments, name) for name in names})
    steps = arguments.steps or (None if arguments.minutes else _STEPS)
    every = arguments.test_every or _TEST_EVERY[arguments.device]
    limits = Limits(
        steps,
        None if arguments.minutes is None else 60.0 * arguments.minutes,
        arguments.samples,
        arguments.refine,
        arguments.tests,
        60.0 * every,
    )
    one = Run(
        settings,
        limits,
        arguments.data_dir,
        torch.device(arguments.device),
        arguments.output,
        arguments.resume,
    )
    reached = one.state["step"] if one.state else 0
    others = [row for row in results.rows if row["arch"] != arch]
    before = [row for row in results.rows if row["arch"] == arch and row["step"] <= reached]

    def merge() -> None:
        results.rows = [*others, *before, *one.rows]
        results.bars = list_bars(results.rows)
        results.write(file)

    def report_row(row: Row) -> bool:
        done = max(
            row["step"] / limits.steps if limits.steps else 0.0,
            row["seconds"] / limits.seconds if limits.seconds else 0.0,
        )
        speed = 1e3 * row["seconds"] / max(1, row["step"])
        text = f"{arch}: step {row['step']}, bound {row['elbo']:.2f}, {speed:.3g} ms per step"
        show((place[0] + _LEARNING * min(1.0, done)) / place[1], text)
        return bool(request)

    if one.learn(report_row, merge):
        began = time.monotonic()

        def report_test(done: float) -> bool:
            text = f"{arch}: testing, {100.0 * done:.0f} % of the images"
            if done > 0.0:
                text += f", {describe_time_left(0.0, done, time.monotonic() - began)}"
            show((place[0] + _LEARNING + (1.0 - _LEARNING) * done) / place[1], text)
            return bool(request)

        row = one.finish(report_test)
        if row is not None:
            figure = f"{row['test_ll']:.2f} ± {_format_error(row)} nats"
            text = f"{arch}: test {figure}, {format_duration(row['seconds'])} of learning"
            show((place[0] + 1) / place[1], text, line=True)
    merge()


def _load_or_start_results(file: Path, arguments: argparse.Namespace) -> Results:
    """Return the results of the file, or new ones."""
    if not file.exists():
        return Results("table2")
    results = Results.load(file, "table2")
    present = [arch for arch in arguments.arch if any(row["arch"] == arch for row in results.rows)]
    if present and not arguments.resume:
        raise FileExistsError(
            f"{file} has figures of {', '.join(present)} already: --resume continues them, another "
            f"--output starts anew."
        )
    return results


def _test_architecture(rows: list[Row], arch: str, arguments: argparse.Namespace) -> Row | None:
    """Return the stored test result of an architecture; None if it was trained for less than is now asked."""
    for row in reversed(rows):
        wanted = (arguments.samples, arguments.refine)
        if row["arch"] != arch or row.get("test_ll") is None or (row["samples"], row["refine"]) != wanted:
            continue
        steps = arguments.steps or (None if arguments.minutes else _STEPS)
        long_enough = (steps is not None and row["step"] >= steps) or (
            arguments.minutes is not None and row["seconds"] >= 60.0 * arguments.minutes
        )
        if long_enough:
            return row
    return None


def _select_final_rows(rows: list[Row]) -> dict[str, Row]:
    """Return the last test of each architecture, those of the paper first."""
    order = [*_ARCHITECTURES, *(row["arch"] for row in rows)]
    found: dict[str, Row] = {}
    for arch in dict.fromkeys(order):
        tested = [row for row in rows if row["arch"] == arch and row.get("test_ll") is not None]
        if tested:
            found[arch] = tested[-1]
    return found


def make_table(rows: list[Row]) -> Table:
    """Return a table with one line per architecture: measured figures and those of the paper."""
    headings = [
        "architecture",
        "test, nats",
        "unrefined",
        "± images",
        "± samples",
        "bound",
        "SV-DGP (paper)",
        "VAE-DGP (paper)",
    ]
    headings += ["", "steps", "ms/step", "pixels"]
    lines = []
    for arch, row in _select_final_rows(rows).items():
        bound = [one["elbo"] for one in rows if one["arch"] == arch and one.get("elbo") is not None]
        wanted = TABLE2["SV-DGP"].get(arch)
        lines.append(
            [
                arch,
                f"{row['test_ll']:.2f}",
                _find_unrefined(rows, arch, row),
                _format_error(row),
                f"{row['test_ll_sampling_error']:.3f}",
                f"{bound[-1]:.2f}" if bound else "-",
                f"{wanted:.2f}" if wanted else "-",
                f"{TABLE2['VAE-DGP'][arch]:.2f}" if wanted else "-",
                "" if wanted is None else "pass" if row["test_ll"] >= wanted else "MISS",
                str(row["step"]),
                f"{1e3 * row['seconds'] / max(1, row['step']):.3g}",
                row["preprocessing"],
            ]
        )
    return headings, lines


def _format_error(row: Row) -> str:
    """Return the standard error over images; "-" where a single image has none."""
    error = row["test_ll_standard_error"]
    return f"{error:.2f}" if error is not None and math.isfinite(error) else "-"


def _find_unrefined(rows: list[Row], arch: str, final: Row) -> str:
    """Return the test of the same model without refinement of q(h_1 | y)."""
    same = {"arch": arch, "step": final["step"], "samples": final["samples"], "refine": 0}
    for row in rows:
        if row.get("test_ll") is not None and same.items() <= row.items():
            return f"{row['test_ll']:.2f}"
    return "-"


def list_bars(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the figures to be reached: those of the paper, and that deeper models are better."""
    found, final = [], _select_final_rows(rows)
    for arch, row in final.items():
        if arch in TABLE2["SV-DGP"]:
            wanted = TABLE2["SV-DGP"][arch]
            found.append(_make_bar(f"MNIST, {arch}, test log likelihood", wanted, row["test_ll"]))
    for less, more in itertools.pairwise(_ARCHITECTURES):
        if {less, more} <= final.keys():
            wanted = final[less]["test_ll"]
            found.append(_make_bar(f"MNIST, {more} is better than {less}", wanted, final[more]["test_ll"]))
    return found


def _make_bar(what: str, wanted: float, figure: float) -> dict[str, Any]:
    return {
        "what": what,
        "wanted": wanted,
        "sense": "≥",
        "figure": figure,
        "unit": "nats",
        "passed": figure >= wanted,
    }


def _draw(rows: list[Row], output: Path) -> None:
    if not rows:
        return
    try:
        figure = plots_table2.draw_figure(rows)
    except ImportError:
        return
    for kind in ("png", "svg"):
        figure.savefig(output / f"{NAME}.{kind}", dpi=150)


def _parse_archs(text: str) -> list[str]:
    return list(dict.fromkeys(_parse_widths(part) for part in text.split(",")))


def _parse_widths(text: str) -> str:
    if not all(part.isdigit() and int(part) > 0 for part in text.split("-")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 5-20-50")
    return text
