"""`lapgrad bench sweep`: what is drawn, what is compared, what a resumed run does, and the maps."""

import itertools
import json

import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.ops.cases import OPERATORS, Case
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.sweep import draw, heatmaps, summary
from lapgrad_bench.bench.sweep.summary import Comparison
from lapgrad_bench.bench.watched import requests
from lapgrad_bench.common.results import Results

LIMITS = draw.Limits.choose(torch.device("cpu"), 2, call_seconds=2.0)


def draw_first_cases(seed, count, **options):
    return list(itertools.islice(draw.draw_cases(seed, LIMITS, **options), count))


def run_sweep(*options):
    """Run the command in this process, so that tests can replace what is measured."""
    small = ["--call-seconds", "0.001", "--seconds", "60"]
    return cli.main(["bench", "sweep", "--give-up", "0", *small, *map(str, options)])


def row(library, seconds, operator="potrf", shape=(8, 8), phase="forward", **changes):
    case = {"operator": operator, "shape": list(shape), "dtype": "float64", "device": "cpu", "threads": 2}
    return {**case, "phase": phase, "library": library, "median_s": seconds, **changes}


def test_cases_depend_on_the_seed_alone():
    assert draw_first_cases(3, 70) == draw_first_cases(3, 90)[:70]
    assert draw_first_cases(3, 70) != draw_first_cases(4, 70)


def test_every_operator_is_drawn_once_per_round():
    cases = draw_first_cases(0, 2 * len(OPERATORS))
    for half in (cases[: len(OPERATORS)], cases[len(OPERATORS) :]):
        assert {case.operator.name for case in half} == set(OPERATORS)


def test_sizes_are_spread_over_the_whole_range():
    shapes = [case.shape for case in draw_first_cases(0, 2000, operators=["extractdiag", "trsm", "gesvd"])]
    assert min(shape.n for shape in shapes) == 1
    assert max(shape.n for shape in shapes) > 3000
    assert max(shape.items for shape in shapes) > 50_000
    # A quarter of the drawn cases has no batch; of those within the limits there are more.
    assert 400 < sum(shape.batch == () for shape in shapes) < 1200
    for has_form in (lambda s: s.n == s.m, lambda s: s.n < s.m, lambda s: s.n > s.m):
        assert sum(map(has_form, shapes)) > 200
    # Logarithmic: every factor of 8 has a fair share of the orders.
    for least in (1, 8, 64, 512):
        assert sum(least <= shape.n < 8 * least for shape in shapes) > 0.08 * len(shapes)


def test_operators_of_square_matrices_are_square():
    assert all(
        case.shape.n == case.shape.m for case in draw_first_cases(0, 200, operators=["potrf", "inverse"])
    )


def test_limits_hold():
    for case in draw_first_cases(1, 500):
        assert draw.count_operand_bytes(case) <= LIMITS.operand_bytes
        assert draw.estimate_seconds(case, LIMITS) <= LIMITS.call_seconds
    # The limits are so tight that only a filter of one step meets them.
    tight = draw.Limits(operand_bytes=1e6, call_seconds=1e-3, rate=1e10)
    for case in itertools.islice(draw.draw_cases(1, tight), 200):
        assert case.shape.n * case.shape.m * case.shape.items * case.dtype.itemsize <= 1e6


def test_what_torch_does_one_by_one_on_a_gpu_counts():
    gpu = torch.device("cuda")
    limits = draw.Limits.choose(gpu, 2, call_seconds=0.1)

    def estimate(name, text):
        return draw.estimate_seconds(Case(OPERATORS[name], Shape.parse(text), torch.float64, gpu), limits)

    assert estimate("gesvd", "1000x64x64") > 1.0 > 0.1 > estimate("gesvd", "1000x32x32")
    assert estimate("gelqf", "10000x16x16") > 0.5
    assert estimate("pstrf", "1000") >= 0.1
    assert estimate("potrf", "1000x64x64") < 0.01


def test_the_fastest_other_library_counts():
    rows = [row("lapgrad", 2.0), row("torch", 4.0), row("jax", 1.0)]
    (one,) = summary.compare_libraries(rows)
    assert (one.library, one.ratio, one.is_slower) == ("jax", 0.5, True)


def test_libraries_that_failed_are_not_compared():
    assert summary.compare_libraries([row("lapgrad", 2.0), row("torch", None, error="hung")]) == []
    assert summary.compare_libraries([row("lapgrad", None, error="?"), row("torch", 1.0)]) == []


def test_the_share_of_slower_timings():
    seconds = [1.0, 0.96, 0.94, 0.6]
    rows = [
        each
        for n, theirs in enumerate(seconds, 1)
        for each in (row("lapgrad", 1.0, shape=(n, n)), row("torch", theirs, shape=(n, n)))
    ]
    compared = summary.compare_libraries(rows)
    assert summary.describe_share(compared) == (
        "2 of 4 timings (50.0 %) below 0.95, 1 below 0.7; worst 0.60, median 0.95"
    )
    assert [one.shape for one in summary.list_worst(compared)] == [(4, 4), (3, 3)]
    assert summary.make_operator_table(compared)[1] == [["potrf", "4", "2", "50.0 %", "0.60", "0.95"]]


def test_fields_of_a_map():
    sizes = {
        (1, ()): (0, 0),
        (3, (1,)): (0, 1),
        (4, (9,)): (1, 2),
        (64, (10,)): (2, 6),
        (5000, (99999,)): (5, 12),
    }
    for (order, batch), (line, column) in sizes.items():
        one = Comparison("potrf", (*batch, order, order), "float64", "forward", 1.0, 2.0, "torch")
        grid = heatmaps.group_by_size([one])
        assert grid[line][column] == [2.0]
        assert sum(len(field) for fields in grid for field in fields) == 1


def test_a_run_and_its_continuation(tmp_path, capsys, monkeypatch):
    file, plots = tmp_path / "sweep.json", tmp_path / "plots"
    common = ["--ops", "syrk,potrf", "--seed", "5", "--output", file]
    assert run_sweep(*common, "--cases", 2) == 0
    first = Results.load(file, "sweep")
    assert {each["number"] for each in first.rows} == {0, 1}
    assert {each["phase"] for each in first.rows} == {"forward", "backward"}
    assert "seed 5:" in capsys.readouterr().out
    measured = []
    measure = requests.measure
    monkeypatch.setattr(
        requests, "measure", lambda case, *rest, **more: measured.append(case) or measure(case, *rest, **more)
    )
    assert run_sweep(*common, "--cases", 4, "--resume", "--plots", plots) == 0
    assert len({str(case) for case in measured}) == 2
    assert Results.load(file, "sweep").rows[: len(first.rows)] == first.rows
    assert sorted(path.name for path in plots.iterdir()) == ["sweep-potrf.png", "sweep-syrk.png"]
    assert run_sweep("--ops", "syrk,potrf", "--seed", "6", "--output", file, "--resume") == 2


def test_time_is_up(tmp_path):
    file = tmp_path / "sweep.json"
    assert run_sweep("--ops", "syrk", "--seconds", "1e-9", "--output", file) == 0
    assert json.loads(file.read_text())["rows"] == []


def test_a_case_without_figures_is_named_and_not_repeated(tmp_path, capsys, monkeypatch):
    def disagree(case, *rest, **more):
        raise requests.DisagreementError("off by one")

    file = tmp_path / "sweep.json"
    monkeypatch.setattr(requests, "measure", disagree)
    assert run_sweep("--ops", "syrk", "--cases", 1, "--output", file) == 1
    assert "off by one" in capsys.readouterr().out
    monkeypatch.setattr(requests, "measure", lambda *rest, **more: pytest.fail("measured again"))
    assert run_sweep("--ops", "syrk", "--cases", 1, "--output", file, "--resume") == 1


def test_a_slower_timing_is_repeated_for_longer(tmp_path, monkeypatch):
    """The second timing counts, whatever it says; here lapgrad is faster then."""
    asked = []

    def measure(case, phases, threads, seconds, **more):
        asked.append((tuple(phases), seconds))

        class Found:
            def __init__(self, phase):
                self.phase = phase

            def make_rows(self):
                ours = 2.0 if len(asked) == 1 and self.phase == "backward" else 1.0
                return [
                    row("lapgrad", ours, phase=self.phase, samples=3),
                    row("torch", 1.0, phase=self.phase, samples=3),
                ]

        return [Found(phase) for phase in phases]

    monkeypatch.setattr(requests, "measure", measure)
    file = tmp_path / "sweep.json"
    assert run_sweep("--ops", "potrf", "--cases", 1, "--output", file) == 0
    assert [phases for phases, _ in asked] == [("forward", "backward"), ("backward",)]
    assert asked[1][1] > asked[0][1]
    assert [one.ratio for one in summary.compare_libraries(Results.load(file).rows)] == [1.0, 1.0]
