"""Benchmarks: every operator has a case, libraries compute the same, and the command prints the results."""

import json
import time

import public
import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.measure.memory import can_measure_memory, measure_peak_bytes
from lapgrad_bench.bench.measure.timing import Timing, time_in_turns
from lapgrad_bench.bench.ops import bars, runner, tables
from lapgrad_bench.bench.ops.cases import OPERATORS, Case, Operator
from lapgrad_bench.bench.ops.coexist import Alternation
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.common import text_tables


@pytest.fixture(autouse=True)
def small_yardstick(monkeypatch):
    """Use a small matrix product as the unit of speed, so that measuring it takes no time."""
    monkeypatch.setattr("lapgrad_bench.bench.ops.gemm.choose_order", lambda device, threads: 32)


def test_every_operator_has_a_benchmark_case():
    assert set(OPERATORS) == set(public.OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [("5", torch.float64), ("3x4x4", torch.float32), ("2x3x5x5", torch.float64)]
)
def test_lapgrad_and_its_peer_agree_and_are_timed(name, shape, dtype):
    case = Case(OPERATORS[name], Shape.parse(shape), dtype)
    measurements = runner.measure(case, runner.PHASES, torch.get_num_threads(), seconds=0)
    assert [m.phase for m in measurements] == ["forward", "backward", "step"]
    for m in measurements:
        assert m.ours.samples >= 3
        assert m.ratio > 0
        assert m.compute_rate(m.ours) > 0
        json.dumps(m.make_rows())


@pytest.mark.parametrize("name", ["trsm", "trmm", "syrk", "gemmt", "gemm2", "gemm"])
def test_products_take_rectangles(name):
    case = Case(OPERATORS[name], Shape.parse("6x3"), torch.float64)
    assert runner.measure(case, ["backward"], torch.get_num_threads(), seconds=0)


def test_flops_of_a_batch_and_of_a_step():
    batch = Case(OPERATORS["potrf"], Shape.parse("10x6x6"), torch.float64)
    assert batch.count_operations("forward") == 10 * 6**3 / 3
    assert batch.count_operations("backward") == 2 * batch.count_operations("forward")
    assert batch.count_operations("step") == batch.count_operations("forward") + batch.count_operations(
        "backward"
    )


def test_results_that_differ_are_not_timed():
    right = OPERATORS["syrk"]
    wrong = Operator(**{**vars(right), "ours": lambda A: A @ A.mT + 1e-3})
    with pytest.raises(runner.DisagreementError, match=r"syrk 5 float64: result 0 differs from torch by"):
        runner.measure(Case(wrong, Shape(5, 5), torch.float64), ["forward"], 1, seconds=0)


def test_thread_count_is_put_back():
    before = torch.get_num_threads()
    with runner.use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_functions_take_turns_and_the_order_is_reversed():
    calls = []
    slow = [lambda: (calls.append("a"), time.sleep(3e-3)), lambda: (calls.append("b"), time.sleep(3e-3))]
    time_in_turns(slow, 0, least_rounds=4)
    assert "".join(calls).endswith("abbaabba")


def test_interleaved_measures_a_known_time():
    fast, slow = time_in_turns([lambda: None, lambda: time.sleep(2e-3)], 0.02)
    assert slow.median >= 2e-3
    assert fast.median < 1e-4
    assert slow.low <= slow.median <= slow.high


def test_time_budget_ends_the_rounds():
    (timing,) = time_in_turns([lambda: time.sleep(1e-3)], 0.05, least_rounds=2)
    assert 2 <= timing.samples <= 60


@pytest.mark.skipif(not can_measure_memory(), reason="the peak memory of a process cannot be reset here")
def test_peak_memory_of_a_known_allocation():
    megabyte = 2**20
    held = measure_peak_bytes(lambda: bytearray(64 * megabyte))
    assert 62 * megabyte < held < 70 * megabyte


@pytest.mark.parametrize("machine", ["few-cores", "many-cores", "cuda"])
def test_bars_are_named_once(machine):
    names = [bar.what for bar in bars.list_bars(machine)]
    assert len(names) == len(set(names))


def test_a_bar_has_a_sense():
    least, most = (bars.Bar("what", sense, 2.0, lambda bench: 0.0) for sense in ("≥", "≤"))
    assert least.is_reached(2.5)
    assert not most.is_reached(2.5)
    assert not most.is_reached(float("nan"))


def test_bars_share_measurements():
    bench = bars.BarMeasurer(torch.get_num_threads(), seconds=0)
    case = Case(OPERATORS["potrf"], Shape(5, 5), torch.float64)
    assert bench.get_measurement(case, "forward") is bench.get_measurement(case, "forward")


def test_alternation_compares_a_pair_with_the_sum():
    assert Alternation(512, 512, 4e-3, 4e-3, 12e-3).ratio == pytest.approx(1.5)


def test_tables_without_rich(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text_tables.print_table((["operator", "ms"], [["potrf", "1.2"]]), "title")
    assert capsys.readouterr().out == "\ntitle\noperator  ms\npotrf     1.2\n"


def test_scaling_table_compares_with_the_fewest_threads():
    case = Case(OPERATORS["potrf"], Shape(5, 5), torch.float64)
    seconds = {1: 8.0, 4: 2.0}
    found = [
        row
        for t, s in seconds.items()
        for row in runner.Measurement(case, "forward", t, Timing(s, s, s, 1), Timing(1, 1, 1, 1)).make_rows()
    ]
    headings, rows = tables.make_scaling_table(found)
    assert headings[-2:] == ["1 threads", "4 threads"]
    assert rows == [["potrf", "5", "float64", "forward", "1.00×", "4.00×"]]


def test_command_prints_ratios_and_writes_the_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "bench.json"
    options = ["--quick", "--ops", "potrf,trmm", "--sizes", "8", "--batches", "3x4x4", "--output", str(file)]
    options += ["--dtypes", "float64", "--threads", "1,2", "--seconds", "0.001", "--give-up", "0"]
    assert cli.main(["bench", "ops", *options]) == 0
    printed = capsys.readouterr().out
    for text in ("potrf", "trmm", "3×4×4", "×", "GF/s", "scaling of lapgrad with threads"):
        assert text in printed
    written = json.loads(file.read_text())
    assert len(written["rows"]) == 2 * 2 * 2 * 2 * 2  # the last 2: lapgrad and torch
    assert written["lapgrad_results"] == 1
    assert written["complete"]
    assert written["command"].startswith("lapgrad bench ops --quick --ops potrf,trmm")
    machine = written["machine"]
    assert machine["cpu"]["model"]
    assert machine["torch"]["version"] == torch.__version__
    assert machine["date"]


@pytest.mark.parametrize(("load", "warned"), [(1000.0, True), (0.0, False)])
def test_command_warns_on_a_busy_machine(load, warned, monkeypatch, capsys):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    options = ["--ops", "syrk", "--sizes", "4", "--batches", "", "--dtypes", "float64", "--seconds", "0.001"]
    assert cli.main(["bench", "ops", "--give-up", "0", *options]) == 0
    assert ("this machine is busy" in capsys.readouterr().err) == warned


def test_command_prints_markdown(capsys):
    options = ["--ops", "syrk", "--sizes", "4", "--batches", "", "--dtypes", "float64", "--seconds", "0.001"]
    assert cli.main(["bench", "ops", "--give-up", "0", *options, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| operator | shape |")
    assert lines[2].startswith("| `syrk` | 4 | float64 |")
    assert "threads, torch" in lines[-1]


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 1)])
def test_command_judges_bars(strict, code, monkeypatch, tmp_path, capsys):
    table = [
        bars.Bar("potrf 1 forward", "≥", 2.0, lambda bench: 2.5),
        bars.Bar("potrf 2 forward", "≥", 2.0, lambda bench: 1.5),
        bars.Bar("syrk 2 forward", "≥", 2.0, lambda bench: 1.5),
    ]
    monkeypatch.setattr("lapgrad_bench.bench.ops.bars.list_bars", lambda machine: table)
    file = tmp_path / "bars.json"
    assert (
        cli.main(
            ["bench", "ops", "--give-up", "0", "--ops", "potrf", "--bars", "--output", str(file), *strict]
        )
        == code
    )
    printed = capsys.readouterr().out
    assert "1 of 2 bars reached" in printed
    assert "MISS" in printed
    assert [bar["passed"] for bar in json.loads(file.read_text())["bars"]] == [True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("options", [[], ["--bars"]])
def test_command_says_that_there_is_no_gpu(options, capsys):
    assert cli.main(["bench", "ops", "--give-up", "0", "--device", "cuda", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lapgrad bench: --device cuda: torch ")
    assert line.endswith("sees no CUDA device")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", OPERATORS)
def test_cases_on_a_gpu(name):
    case = Case(OPERATORS[name], Shape.parse("3x4x4"), torch.float64, torch.device("cuda"))
    (found,) = runner.measure(case, ["step"], 1, seconds=0)
    assert found.ours.median > 0
    assert 0 < found.device["lapgrad"].median < 1
    assert found.device_ratio > 0


def test_bars_are_measured_on_the_device_of_the_bench():
    bench = bars.BarMeasurer(1, seconds=0, device=torch.device("cpu"))
    case = Case(OPERATORS["potrf"], Shape(5, 5), torch.float64, torch.device("cuda"))
    assert bench.get_measurement(case, "forward").case.device.type == "cpu"
