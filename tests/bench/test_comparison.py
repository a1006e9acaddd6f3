"""Two results files of operators: what got slower is found, noise of machines is not."""

import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.measure.timing import Timing
from lapgrad_bench.bench.ops import comparison
from lapgrad_bench.bench.ops.runner import Measurement
from lapgrad_bench.bench.watched import requests
from lapgrad_bench.common.results import Results


def make_row(n=8, seconds=1e-3, rate=1e9, **changes):
    case = {"operator": "syrk", "shape": [n, n], "dtype": "float64", "device": "cpu", "threads": 1}
    times = {"median_s": seconds, "low_s": seconds, "high_s": seconds, "samples": 5}
    rest = {"phase": "forward", "library": "lapgrad", "flops": n**3, "bytes": 8, "extra_bytes": None}
    return {**case, **times, **rest, "gemm_fraction": 0.5, "gemm_rate": rate, **changes}


def make_results(*rows, **changes):
    return Results("ops", complete=True, rows=list(rows), **changes)


def compare_rows(old, new):
    return comparison.compare(make_results(*old), make_results(*new))


@pytest.mark.parametrize(
    ("seconds", "rate", "verdict"),
    [
        (1.10e-3, 1e9, "same"),
        (1.20e-3, 1e9, "WORSE"),
        (0.80e-3, 1e9, "better"),
        (2.00e-3, 0.5e9, "same"),  # everything takes twice as long today
        (1.00e-3, 1.3e9, "WORSE"),  # the machine is faster, and the operator is not
    ],
)
def test_times_are_compared_in_products(seconds, rate, verdict):
    (change,) = compare_rows([make_row()], [make_row(seconds=seconds, rate=rate)]).changes
    assert change.verdict == verdict


def test_the_worst_is_named_first():
    old, new = (
        [make_row(8), make_row(16), make_row(32)],
        [make_row(8, 1.2e-3), make_row(16, 3e-3), make_row(32, 0.5e-3)],
    )
    found = compare_rows(old, new)
    headings, lines = comparison.make_table(found)
    assert [line[1] for line in lines] == ["16", "8", "32"]
    assert [line[-2] for line in lines] == ["+200 %", "+20 %", "-50 %"]
    assert [line[-1] for line in lines] == ["WORSE", "WORSE", "better"]
    assert len(headings) == len(lines[0])


def test_other_libraries_do_not_count():
    assert not compare_rows(
        [make_row(), make_row(library="torch")], [make_row(), make_row(library="torch", seconds=9.0)]
    ).worse


def test_cases_of_one_file_are_listed():
    found = compare_rows(
        [make_row(8), make_row(16), make_row(16, phase="backward")], [make_row(8), make_row(32)]
    )
    lines = comparison.list_notes(found, ("old.json", "new.json"), repeated=True)
    assert "only in old.json (2): syrk 16 float64 cpu 1 threads forward+backward" in lines
    assert "only in new.json (1): syrk 32 float64 cpu 1 threads forward" in lines


def test_a_missing_rate_is_said():
    found = compare_rows([make_row(rate=None)], [make_row()])
    assert not found.changes
    assert any(
        "a rate of gemm is missing (1)" in line for line in comparison.list_notes(found, ("a", "b"), True)
    )


def test_other_machines_threads_and_dtypes_are_said():
    old = make_results(make_row())
    new = make_results(make_row(threads=4), make_row(dtype="float32"))
    new.machine["cpu"] = {**new.machine["cpu"], "model": "abacus"}
    new.complete = False
    lines = comparison.compare(old, new).differences
    model = old.machine["cpu"]["model"]
    assert f"another processor: {model} in the old file, abacus now" in lines
    assert "other threads: 1 in the old file, 1, 4 now" in lines
    assert "other dtype: float64 in the old file, float32, float64 now" in lines
    assert "the new file is that of a run that was interrupted" in lines


@pytest.fixture(autouse=True)
def small_yardstick(monkeypatch):
    """Use a small matrix product as the unit of speed, so that measuring it takes no time."""
    monkeypatch.setattr("lapgrad_bench.bench.ops.gemm.choose_order", lambda device, threads: 32)


def run_bench(*options):
    return cli.main(["bench", "ops", "--give-up", "0", *map(str, options)])


@pytest.mark.parametrize(
    ("new", "code", "text"),
    [
        ([make_row()], 0, "1 figures compared: 0 worse by more than 15 %"),
        ([make_row(seconds=2e-3)], 1, "what is worse may be noise"),
        ([make_row(threads=2)], 2, "other threads: 1 in the old file, 2 now"),
    ],
)
def test_files_are_compared_without_running(new, code, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(requests, "measure", None)
    old_file, new_file = tmp_path / "old.json", tmp_path / "new.json"
    make_results(make_row()).write(old_file)
    make_results(*new).write(new_file)
    assert run_bench("--compare", old_file, "--with", new_file) == code
    shown = capsys.readouterr()
    assert text in shown.out
    assert ("WORSE" in shown.out) == (code == 1)
    assert ("have no case in common" in shown.err) == (code == 2)


class Stopwatch:
    """Stands in for `measure`, and returns the given times of syrk one after the other."""

    def __init__(self, seconds):
        self.seconds, self.calls = list(seconds), []

    def __call__(self, case, phases, threads, seconds, **options):
        self.calls.append((str(case), tuple(phases)))
        time = self.seconds.pop(0)
        timing = Timing(time, time, time, 5)
        return [Measurement(case, p, threads, timing, timing, gemm_rate=1e9) for p in phases]


@pytest.mark.parametrize(
    ("seconds", "code", "kept"),
    [
        ([1.0e-3], 0, 1.0e-3),
        ([2.0e-3, 1.1e-3], 0, 1.1e-3),  # noise
        ([2.0e-3, 2.1e-3, 1.0e-3], 0, 1.0e-3),
        ([2.0e-3, 1.9e-3, 2.1e-3], 1, 1.9e-3),
    ],
)
def test_what_looks_worse_is_measured_again(seconds, code, kept, tmp_path, capsys, monkeypatch):
    old_file, new_file = tmp_path / "old.json", tmp_path / "new.json"
    make_results(make_row(), make_row(library="torch"), make_row(operator="no_more")).write(old_file)
    watch = Stopwatch(seconds)
    monkeypatch.setattr(requests, "measure", watch)
    assert run_bench("--compare", old_file, "--output", new_file) == code
    assert watch.calls == [("syrk 8 float64", ("forward",))] * len(seconds)
    stored = Results.load(new_file)
    assert [r["median_s"] for r in stored.rows if r["library"] == "lapgrad"] == [kept]
    printed = capsys.readouterr().out
    assert f"only in {old_file} (1): no_more 8" in printed
    assert ("WORSE" in printed) == bool(code)


def test_a_run_is_compared_with_an_earlier_one(tmp_path, capsys):
    """The cases of the file are run unless others are asked for."""
    old_file = tmp_path / "old.json"
    options = [
        "--ops",
        "syrk",
        "--sizes",
        "4,6",
        "--batches",
        "",
        "--dtypes",
        "float64",
        "--seconds",
        "0.001",
    ]
    assert run_bench(*options, "--output", old_file) == 0
    old = Results.load(old_file)
    for stored in old.rows:
        stored["median_s"] *= 100.0  # so that nothing can be worse
    old.write(old_file)
    capsys.readouterr()
    assert run_bench("--compare", old_file) == 0
    printed = capsys.readouterr().out
    assert "4 figures compared: 0 worse" in printed
    assert "4 better" in printed
    assert run_bench("--compare", old_file, *options[:2], "--sizes", "4", *options[4:]) == 0
    assert (
        f"only in {old_file} (2): syrk 6 float64 cpu {torch.get_num_threads()} threads"
        in capsys.readouterr().out
    )
