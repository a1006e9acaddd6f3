"""The command `lapgrad demo`: a short tour, or one of the examples.

The tour learns, forecasts, compares the time with torch.linalg, and draws.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lapgrad.demo import carbon, examples
from lapgrad.demo.model import PARAMETERS, learn, make_model, predict, to_inputs
from lapgrad.demo.notebook import convert_to_notebook
from lapgrad.demo.timing import Comparison, compare_with_torch, make_random_model
from lapgrad.models import GPRegression

if TYPE_CHECKING:
    from rich.console import Console

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lapgrad demo`."""
    known = [example.short_name for example in examples.find_examples()]
    parser.add_argument(
        "example",
        nargs="?",
        help=f"run an example in place of the tour: {', '.join(known) or 'none is installed'}; or 'list'",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where the figure goes [demo.png]; of an example: the folder for figures [.]",
    )
    of_examples = parser.add_argument_group("examples")
    of_examples.add_argument("--quick", action="store_true", help="a reduced form that takes seconds")
    of_examples.add_argument(
        "--data-dir",
        type=Path,
        help="where data are that do not come with the package; examples without such data ignore it",
    )
    of_examples.add_argument(
        "--notebook", type=Path, metavar="FILE", help="write the example as a Jupyter notebook, do not run it"
    )
    tour = parser.add_argument_group("the tour")
    tour.add_argument("--steps", type=_parse_count, default=300, help="steps of Adam [300]")
    tour.add_argument("--dtype", choices=list(_DTYPES), default="float64", help="[float64]")
    tour.add_argument("--seed", type=int, default=0, help="of the random data that are timed [0]")
    tour.add_argument("--threads", type=_parse_count, help="torch.set_num_threads [torch's]")
    tour.add_argument(
        "--large", type=_parse_count, default=2048, help="size of the random data that are timed [2048]"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the tour or an example; return the exit code."""
    if arguments.example == "list":
        return _list_examples()
    missing = [name for name in ("rich", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"lapgrad demo needs {' and '.join(missing)}: pip install 'lapgrad[demo]'", file=sys.stderr)
        return 1
    if arguments.example:
        return _run_example(arguments)
    return _run_tour(arguments)


def _list_examples() -> int:
    rows = [(example.short_name, example.title) for example in examples.find_examples()]
    width = max((len(name) for name, _ in rows), default=0)
    columns = max(shutil.get_terminal_size().columns - width - 2, 20)
    for name, title in rows:
        first, *others = textwrap.wrap(title, columns)
        print(f"{name:{width}}  {first}", *(" " * (width + 2) + line for line in others), sep="\n")
    return 0


def _run_example(arguments: argparse.Namespace) -> int:
    example = examples.find_example(arguments.example)
    if example is None:
        known = ", ".join(example.short_name for example in examples.find_examples())
        _print_error(f"lapgrad demo: there is no example {arguments.example!r}. There are: {known}.")
        return 2
    passed = ["--quick"] if arguments.quick else []
    if arguments.output:
        passed += ["--output", str(arguments.output)]
    if arguments.data_dir and example.takes_data:
        passed += ["--data-dir", str(arguments.data_dir)]
    elif arguments.data_dir:
        print(f"{example.short_name} reads no data files: --data-dir has no effect.", file=sys.stderr)
    if arguments.notebook:
        text = convert_to_notebook(example.path.read_text(encoding="utf-8"), [example.path.name, *passed])
        try:
            arguments.notebook.write_text(text, encoding="utf-8")
        except OSError as error:
            _print_error(f"lapgrad demo: {arguments.notebook} cannot be written: {error.strerror}.")
            return 1
        print(f"notebook: {arguments.notebook}")
        return 0
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    began = time.time()
    try:
        example.run(passed)
    except FileNotFoundError as error:
        if not arguments.data_dir or not Path(str(error.filename)).is_relative_to(arguments.data_dir):
            raise
        _print_error(
            f"lapgrad demo {example.short_name}: {error.filename} does not exist. The example reads it from "
            "--data-dir."
        )
        return 1
    folder = arguments.output or Path()
    written = sorted(path for path in folder.glob("*.png") if path.stat().st_mtime >= began)
    if written:
        print("written:", *written)
    return 0


def _print_error(text: str) -> None:
    print(textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False), file=sys.stderr)


def _run_tour(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from lapgrad.demo.plot import draw

    output = arguments.output or Path("demo.png")

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    console = Console()
    dtype = _DTYPES[arguments.dtype]
    train, test = carbon.load()
    console.print("[bold]Gaussian process regression[/]: CO2 at Mauna Loa, monthly means")
    console.print(
        f"learn from {len(train)} months (1959 to 1987), forecast {len(test)} (1988 to 1997)\n"
        f"{arguments.dtype}, threads: {torch.get_num_threads()}\n"
    )
    model = make_model(train, dtype)
    started = time.perf_counter()
    learn(model, arguments.steps, progress=True)
    seconds = time.perf_counter() - started
    with console.status("timing value and gradient against torch.linalg"):
        random = make_random_model(arguments.large, dtype, arguments.seed)
        comparisons = [
            compare_with_torch(f"this model, n = {len(train)}", model, seconds=2.0),
            compare_with_torch(f"random data, 8 inputs, n = {arguments.large}", random, seconds=4.0),
        ]
    _print_summary(model, train, test, seconds, comparisons, console)
    draw(model, train, test, output)
    console.print(f"\nfigure: [bold]{output}[/]", soft_wrap=True)
    return 0


def _print_summary(
    model: GPRegression,
    train: carbon.Series,
    test: carbon.Series,
    seconds: float,
    comparisons: list[Comparison],
    console: Console,
) -> None:
    from rich.table import Table

    learned = Table(title="learned hyper-parameters", title_justify="left", show_header=False)
    learned.add_column()
    learned.add_column(justify="right")
    learned.add_column()
    for parameter in PARAMETERS:
        learned.add_row(parameter.text, f"{parameter.read(model):.4g}", parameter.unit)

    mean, deviation = predict(model, test.years)
    dtype = model.X.dtype
    log_likelihood = model.log_prob(to_inputs(test.years, dtype), test.ppm.to(dtype)).mean()
    covered = ((mean - test.ppm).abs() < 1.96 * deviation).double().mean()
    drift = carbon.repeat_last_year_with_drift(train, len(test))
    forecast = Table(title=f"forecast of {len(test)} months", title_justify="left", show_header=False)
    forecast.add_column()
    forecast.add_column(justify="right")
    forecast.add_column()
    forecast.add_row("RMSE", f"{_compute_rmse(mean, test.ppm):.3f}", "ppm")
    forecast.add_row("  last year + ten-year drift", f"{_compute_rmse(drift, test.ppm):.3f}", "ppm")
    forecast.add_row("  mean of the training data", f"{_compute_rmse(train.ppm.mean(), test.ppm):.3f}", "ppm")
    forecast.add_row("mean log likelihood", f"{float(log_likelihood):.3f}", "per month")
    forecast.add_row("inside the 95% band", f"{100 * float(covered):.0f}", "%")
    forecast.add_row("learning took", f"{seconds:.1f}", "s")

    timed = Table(title="value and gradient, medians", title_justify="left")
    timed.add_column("")
    for heading in ("lapgrad ms", "torch.linalg ms", "faster"):
        timed.add_column(heading, justify="right")
    for row in comparisons:
        timed.add_row(row.what, f"{row.lapgrad * 1e3:.1f}", f"{row.torch * 1e3:.1f}", f"{row.speedup:.2f}×")

    console.print()
    for table in (learned, forecast, timed):
        console.print(table)


def _compute_rmse(prediction: torch.Tensor, truth: torch.Tensor) -> float:
    return float((prediction - truth).square().mean().sqrt())


def _parse_count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
