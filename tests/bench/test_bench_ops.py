"""`lapgrad bench ops` as a whole: what is planned, what is kept of an interrupted run, what is plotted."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lapgrad import cli
from lapgrad._kernels.table import is_core_in_use
from lapgrad_bench.bench.measure.memory import can_measure_memory
from lapgrad_bench.bench.measure.timing import Timing, take_turns
from lapgrad_bench.bench.ops import plan, runner, tables
from lapgrad_bench.bench.ops import plots as op_plots
from lapgrad_bench.bench.ops.bars import Bar
from lapgrad_bench.bench.ops.cases import OPERATORS, Case
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops_options import add_arguments
from lapgrad_bench.bench.watched import requests
from lapgrad_bench.common import progress, text_tables
from lapgrad_bench.common.results import Results

SMALL = ["--ops", "syrk,trmm", "--sizes", "4,6", "--batches", "", "--dtypes", "float64", "--seconds", "0.001"]


@pytest.fixture(autouse=True)
def small_yardstick(monkeypatch):
    """Use a small matrix product as the unit of speed, so that measuring it takes no time."""
    monkeypatch.setattr("lapgrad_bench.bench.ops.gemm.choose_order", lambda device, threads: 32)


def bench(*options):
    """Run the command in this process (--give-up 0), so that tests can replace what is measured."""
    return cli.main(["bench", "ops", "--give-up", "0", *map(str, options)])


def parse_arguments(*options):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(list(options))


def make_plan_of(*options, earlier=None):
    return plan.make_plan(parse_arguments(*options), earlier)


def test_rows_say_what_was_measured(tmp_path):
    file = tmp_path / "ops.json"
    assert bench(*SMALL, "--give-up", "60", "--output", file) == 0
    rows = Results.load(file, "ops").rows
    row = next(row for row in rows if row["operator"] == "trmm" and row["phase"] == "backward")
    assert row["shape"] == [4, 4]
    assert row["dtype"] == "float64"
    assert row["device"] == "cpu"
    assert row["threads"] == torch.get_num_threads()
    assert row["library"] == "lapgrad"
    assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
    assert row["samples"] >= 3
    assert row["flops"] == 2 * 4**3
    # L, A and the product, each 4 × 4; then cotangent, gradients, and the same again to be read
    assert row["bytes"] == 2 * 3 * 16 * 8
    assert row["gemm_fraction"] == pytest.approx(row["flops"] / row["median_s"] / row["gemm_rate"])
    assert row["extra_bytes"] is None  # too small to be seen


def test_operators_without_arithmetic_have_bytes_and_no_flops():
    case = Case(OPERATORS["copyltu"], Shape(4, 4), torch.float32)
    timing = Timing(1.0, 1.0, 1.0, 3)
    row = runner.Measurement(case, "forward", 1, timing, timing, gemm_rate=1e9, moved=1.0).make_rows()[0]
    assert row["flops"] is None
    assert row["gemm_fraction"] is None
    assert row["bytes"] == 1.5 * 16 * 4


@pytest.mark.skipif(not can_measure_memory(), reason="the peak memory of a process cannot be reset here")
@pytest.mark.skipif(not is_core_in_use(), reason="without the core there are more buffers")
def test_peak_memory_of_large_operands():
    """Operands of 50 MB, because other threads of the process take and free a megabyte or two."""
    case = Case(OPERATORS["copyltu"], Shape(2500, 2500), torch.float64)
    (m,) = runner.measure(case, ["forward"], 1, seconds=0, memory=True)
    assert m.extra_bytes["lapgrad"] == pytest.approx(2500 * 2500 * 8, rel=0.1)
    assert m.extra_bytes["torch"] > 1.5 * m.extra_bytes["lapgrad"]


def test_the_yardstick_takes_turns_but_not_more_than_a_tenth_of_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def taking(seconds):
        def sample(calls):
            clock[0] += calls * seconds
            return seconds

        return sample

    timed, yardstick = take_turns([taking(1.0), taking(5.0)], 200.0, least_rounds=3, rare=1)
    assert yardstick.samples == 4  # 20 s of 200
    assert timed.samples == 180


def test_quick_has_sizes_for_plots_and_every_operator():
    items = make_plan_of("--quick").items
    sizes = {name: set() for name in OPERATORS}
    for item in items:
        sizes[item.case.operator.name].add(str(item.case.shape))
    for name in ("potrf", "gelqf", "syevd", "gesvd", "trsm", "syrk"):
        assert len(sizes[name]) >= 6
    assert all(sizes.values())
    assert {item.case.dtype for item in items} == {torch.float64, torch.float32}


def test_options_count_more_than_quick():
    items = make_plan_of(
        "--quick", "--ops", "potrf", "--sizes", "5", "--batches", "", "--dtypes", "float32"
    ).items
    assert [str(item.case) for item in items] == ["potrf 5 float32"]
    assert items[0].phases == ("forward", "backward")


def test_a_run_says_how_long_it_takes_and_keeps_to_its_budget(tmp_path, capsys):
    file = tmp_path / "ops.json"
    few = ["--quick", "--ops", "potrf,syrk", "--sizes", "8,4", "--batches", "", "--seconds", "0.001"]
    command = ["bench", "ops", *few, "--threads", "1", "--give-up", "0", "--output", str(file)]
    assert cli.main([*command, "--budget", "1e-9"]) == 0
    shown = capsys.readouterr()
    assert "8 cases, at most 20 s" in shown.err
    assert "8 of 8 cases were not timed" in shown.out
    assert not json.loads(file.read_text())["complete"]
    assert cli.main([*command, "--resume"]) == 0
    assert "8 cases, at most 2 min 40 s" in capsys.readouterr().err
    written = json.loads(file.read_text())
    assert written["complete"]
    shapes = [(row["operator"], row["dtype"], row["shape"][0]) for row in written["rows"][::4]]
    dtypes, sizes = ("float64", "float32"), (8, 4)
    wanted = [(name, dtype, n) for name in ("potrf", "syrk") for n in sizes for dtype in dtypes]
    assert shapes == wanted  # in the order of the options, though measured in another one


def test_quick_measures_what_matters_first_and_takes_at_most_three_minutes():
    items = plan.order_by_importance(make_plan_of("--quick").items)
    first = [item.case.dtype for item in items].index(torch.float32)
    assert all(item.case.dtype == torch.float32 for item in items[first:])
    assert {item.case.operator.name for item in items[:first]} == set(OPERATORS)
    budget = plan.Budget(plan.choose_budget(parse_arguments("--quick")), 120.0)
    assert budget.seconds + budget.patience <= 180.0
    assert plan.choose_budget(parse_arguments()) == math.inf


@pytest.mark.parametrize("rich", [True, False])
def test_tables_fit_80_columns(rich, monkeypatch, capsys):
    if not rich:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "80")
    longest = max(OPERATORS, key=len)
    case = {"operator": longest, "shape": [10000, 64, 64], "dtype": "float64", "device": "cpu", "threads": 2}
    figures = {"median_s": 0.1234, "flops": 1e9, "bytes": 1e9, "gemm_fraction": 0.5, "extra_bytes": 10**9}
    libraries = ("lapgrad", "torch", "tensorflow")
    rows = [{**case, **figures, "phase": "backward", "library": name} for name in libraries]
    wide, narrow = tables.make_timing_table(rows), tables.make_narrow_table(rows)
    text_tables.print_table(wide, "title", narrow=narrow)
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    assert longest in printed
    assert " bwd " in printed
    assert "…" not in printed
    text_tables.print_table(wide, "title", keys=2)
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    assert all(entry in printed for row in [wide[0], *wide[1]] for entry in row)


def test_an_interrupted_run_is_gone_on_with(tmp_path, monkeypatch, capsys):
    file = tmp_path / "ops.json"
    real, cases = requests.measure, []

    def interrupted(case, *rest, **options):
        cases.append(str(case))
        if len(cases) == 3:
            raise KeyboardInterrupt
        return real(case, *rest, **options)

    monkeypatch.setattr(requests, "measure", interrupted)
    assert bench(*SMALL, "--output", file) == 130
    assert f"8 figures are in {file}; the same command with --resume continues" in capsys.readouterr().err
    kept = Results.load(file, "ops")
    assert not kept.complete
    assert len(kept.rows) == 2 * 2 * 2

    assert bench(*SMALL, "--output", file, "--resume") == 0
    assert cases == ["syrk 4 float64", "syrk 6 float64", "trmm 4 float64", "trmm 4 float64", "trmm 6 float64"]
    whole = Results.load(file, "ops")
    assert whole.complete
    assert whole.rows[: len(kept.rows)] == kept.rows
    assert len(whole.rows) == 4 * 2 * 2
    assert "trmm" in capsys.readouterr().out

    assert bench(*SMALL, "--output", file, "--resume") == 0  # nothing is left to do
    assert len(cases) == 5
    assert Results.load(file).rows == whole.rows


def test_ctrl_c_leaves_a_whole_file(tmp_path):
    """A real signal in a real process."""
    file = tmp_path / "ops.json"
    source = Path(cli.__file__).parents[1]
    command_line = [sys.executable, "-m", "lapgrad.cli", "bench", "ops", "--output", str(file)]
    options = ["--ops", "syrk", "--sizes", "4,6,8,10,12,14", "--batches", "", "--seconds", "0.5"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.Popen([*command_line, *options], env=environment, stdout=-1, stderr=-1)
    deadline = time.monotonic() + 60.0
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60.0)
    assert process.returncode == 130
    assert b"Traceback" not in complaints
    found = Results.load(file, "ops")
    assert found.rows
    assert not found.complete
    assert os.listdir(tmp_path) == ["ops.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtypes", "float32"], "was begun with other dtypes: ['float64'] there, ['float32'] here"),
        (["--seconds", "2"], "was begun with other seconds: 0.001 there, 2.0 here"),
        (["--peer", "jax"], "was begun with other peers: [] there, ['jax'] here"),
    ],
)
def test_other_options_are_no_resumption(options, message, tmp_path, capsys):
    file = tmp_path / "ops.json"
    Results("ops", options=make_plan_of(*SMALL).options).write(file)
    assert bench(*SMALL, "--output", file, "--resume", *options) == 2
    assert message in capsys.readouterr().err


def test_another_machine_is_no_resumption(tmp_path, capsys):
    file = tmp_path / "ops.json"
    results = Results("ops", options=make_plan_of(*SMALL).options)
    results.machine["cpu"]["model"] = "abacus"
    results.write(file)
    assert bench(*SMALL, "--output", file, "--resume") == 2
    assert "other processor: abacus there" in capsys.readouterr().err


def test_resuming_nothing_begins(tmp_path):
    file = tmp_path / "ops.json"
    assert bench("--ops", "syrk", *SMALL[2:], "--output", file, "--resume") == 0
    assert Results.load(file).complete


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs the file to continue: --output FILE"),
        (["--with", "new.json"], "--with: say with --compare which file"),
        (["--bars", "--peer", "jax"], "--bars goes with none of --peer"),
        (["--compare", "none.json"], "none.json: there is no such file"),
    ],
)
def test_options_that_do_not_fit_are_named(options, message, capsys):
    assert bench(*options) == 2
    assert message in capsys.readouterr().err


def test_bars_are_gone_on_with(tmp_path, monkeypatch, capsys):
    measured = []

    def figure(bench):
        measured.append(1)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return 2.5

    table = [Bar(f"potrf {n} forward", "≥", 2.0, figure, device=lambda bench: 7.25) for n in (1, 2, 3)]
    monkeypatch.setattr("lapgrad_bench.bench.ops.bars.list_bars", lambda machine: table)
    file = tmp_path / "bars.json"
    assert bench("--bars", "--output", file) == 130
    assert [bar["what"] for bar in Results.load(file).bars] == ["potrf 1 forward"]
    assert bench("--bars", "--output", file, "--resume") == 0
    assert len(measured) == 4
    stored = Results.load(file)
    assert [bar["figure"] for bar in stored.bars] == [2.5] * 3
    assert stored.bars[0].keys() == {"what", "wanted", "sense", "figure", "unit", "passed", "device"}
    printed = capsys.readouterr().out
    assert "3 of 3 bars reached" in printed
    assert printed.count("7.25×") == 3, "one of them from the file"


def test_results_that_differ_end_in_an_error_after_the_others(monkeypatch, capsys):
    real = requests.measure

    def make_disagreement(case, *rest, **options):
        if case.operator.name == "syrk":
            raise runner.DisagreementError(f"{case}: result 0 differs")
        return real(case, *rest, **options)

    monkeypatch.setattr(requests, "measure", make_disagreement)
    assert bench(*SMALL) == 1
    shown = capsys.readouterr()
    assert "not timed: syrk 4 float64: result 0 differs" in shown.err
    assert "trmm" in shown.out


def row(operator="potrf", n=8, **changes):
    times = {"median_s": 1e-6 * n, "low_s": 0.9e-6 * n, "high_s": 1.1e-6 * n, "samples": 5}
    known = {"operator": operator, "shape": [n, n], "dtype": "float64", "device": "cpu", "threads": 2}
    known |= {"phase": "forward", "library": "lapgrad", "flops": n**3, "bytes": 8.0 * n * n}
    return {**known, **times, "gemm_fraction": 0.5, "gemm_rate": 1e9, "extra_bytes": None, **changes}


def test_figures_have_a_panel_per_operator_and_a_line_per_library_and_phase():
    pytest.importorskip("matplotlib")
    rows = [
        row(name, n, library=library, phase=phase)
        for name in ("potrf", "gelqf")
        for n in (8, 16)
        for library in ("lapgrad", "torch", "jax")
        for phase in ("forward", "backward")
    ]
    rows += [row("syrk", 8), row("trsm", shape=[10, 8, 8])]  # one size alone, and a batch
    rows += [row("copyltu", n, flops=None, dtype="float32") for n in (8, 16)]
    found = op_plots.draw_figures(rows)
    assert list(found) == ["ops-cpu-float64-2-threads", "ops-cpu-float32-2-threads"]
    potrf, gelqf, *rest = found["ops-cpu-float64-2-threads"].axes
    assert (potrf.get_title(), gelqf.get_title()) == ("potrf", "gelqf")
    assert not rest
    assert len(potrf.get_lines()) == 3 * 2
    assert len(potrf.collections) == 3 * 2  # bands
    line = potrf.get_lines()[0]
    assert list(line.get_xdata()) == [8, 16]
    assert line.get_ydata() == pytest.approx([1e12 * 8e-6 / 8**3, 1e12 * 16e-6 / 16**3])
    assert potrf.get_xscale() == potrf.get_yscale() == "log"
    (copy,) = found["ops-cpu-float32-2-threads"].axes
    assert "n²" in copy.get_ylabel()


def test_the_legend_of_one_panel_has_room():
    pytest.importorskip("matplotlib")
    rows = [row("potrf", n, library=library) for n in (8, 16) for library in op_plots.COLORS]
    (figure,) = op_plots.draw_figures(rows).values()
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_plots_are_written_twice(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert bench(*SMALL, "--ops", "syrk", "--plots", tmp_path / "plots") == 0
    threads = torch.get_num_threads()
    names = [f"ops-cpu-float64-{threads}-threads.{suffix}" for suffix in ("png", "svg")]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    assert "written: " in capsys.readouterr().out
    assert (tmp_path / "plots" / names[0]).read_bytes()[:4] == b"\x89PNG"


def test_tables_show_what_is_missing():
    rows = [row(), row(library="torch", median_s=16e-6), row(n=16), row(n=16, library="jax")]
    headings, lines = tables.make_timing_table(rows, ["torch", "jax"])
    assert headings[3:] == ["phase", "lapgrad ms", "torch ms (faster)", "jax ms (faster)", "rate", "of gemm"]
    assert lines[0][4:7] == ["0.008", "0.016 (2.0×)", "-"]
    assert lines[1][5:7] == ["-", "0.016 (1.0×)"]
    headings, lines = tables.make_short_table(rows, ["torch"])
    assert lines[1] == ["`potrf`", "16", "float64", "0.016", "-", "-"]


class Terminal:
    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("rich", [True, False])
def test_progress_on_a_terminal(rich, monkeypatch):
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    with progress.show_progress(0.25) as show:
        show(0.25, "potrf 64")
        show(0.26, "potrf 128")
        show(0.5, "potrf 256")
    assert "potrf 256" in terminal.text
    if not rich:
        first, _, third = terminal.text.splitlines()
        assert first == " 25.0 %  estimating  potrf 64"
        assert third.startswith(" 50.0 %  under 1 s left  potrf 256")


def test_the_first_step_does_not_count_for_the_time_left(monkeypatch):
    """It starts threads, compiles and reads data."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    estimate = progress._Estimate(0.0)
    now = 60.0
    assert estimate.describe(0.001) == "estimating"
    now = 70.0
    assert estimate.describe(0.101) == "1 min 30 s left"


def test_progress_is_quiet_off_a_terminal(capsys):
    with progress.show_progress(0.0, quiet_off_terminal=True) as show:
        show(0.0, "potrf 64", line=True)
    assert capsys.readouterr().err == ""
    with progress.show_progress(0.0) as show:
        show(0.0, "potrf 64")
    assert capsys.readouterr().err == "  0.0 %  estimating  potrf 64\n"


def test_json_is_what_the_format_says(tmp_path):
    file = tmp_path / "ops.json"
    bench("--ops", "syrk", *SMALL[2:], "--output", file)
    written = json.loads(file.read_text())
    assert written["kind"] == "ops"
    assert written["peers"] == {}
    assert written["bars"] == []
    assert written["machine"]["threads"]
