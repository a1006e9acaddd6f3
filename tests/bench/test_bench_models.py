"""`lapgrad bench models`: libraries compute the same, are timed in turns, and results are written."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.measure.timing import Timing
from lapgrad_bench.bench.models import deep_gp, exact_gp, sparse_gp
from lapgrad_bench.bench.models import plots as model_plots
from lapgrad_bench.bench.models import runner as model_runner
from lapgrad_bench.bench.models.cases import MODELS, ModelCase, PreparedCase, Selection, list_cases
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.peers.client import PeerError, Peers
from lapgrad_bench.bench.peers.worker.__main__ import Worker

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAPGRAD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def run_command(*options: str) -> int:
    few = ["--quick", "--rows", "80", "--inducing", "5,9", "--sizes", "40", "--seconds", "0"]
    threads = ["--threads", str(torch.get_num_threads())]
    return cli.main(["bench", "models", *few, *threads, *options])


def read_contents(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_libraries_agree_on_all_cases() -> None:
    kernels = exact_gp.KERNELS
    selection = Selection(MODELS, "made up", None, 60, [7], [30], kernels, dimensions=2, quick=True)
    for case in list_cases(selection):
        prepared = case.make(CPU)
        ours, theirs = (prepared.thunks[name]() for name in ("lapgrad", "torch"))
        assert float(ours[0]) == pytest.approx(float(theirs[0]), rel=prepared.tolerances["torch"])
        assert len(ours) > 1


def test_training_steps_learn_the_same() -> None:
    """Steps on lapgrad's and on torch's operators move the parameters alike, and not the given model."""
    problem = deep_gp.Problem.generate(deep_gp.QUICK, CPU)
    before = [value.detach().clone() for value in problem.model.parameters()]
    steps, missing = deep_gp.make_training_steps(problem)
    assert (list(steps), missing) == (["lapgrad", "torch"], None)
    for _ in range(4):
        ours, theirs = (step() for step in steps.values())
    assert float(ours[0]) == pytest.approx(float(theirs[0]), rel=deep_gp.TOLERANCE)
    assert any(not torch.equal(now, value) for now, value in zip(ours[1:], before, strict=True))
    assert all(map(torch.equal, before, problem.model.parameters()))


def test_everything_is_written_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--output", "m.json", "--plots", "plots", "--peer", "gpy=/no/such/python"]
    assert run_command(*options) == 0
    printed = capsys.readouterr()
    assert "Made-up data" in printed.err
    assert "there is no /no/such/python" in printed.out
    found = read_contents(tmp_path / "m.json")
    assert (found["kind"], found["complete"]) == ("models", True)
    assert found["peers"]["gpy"]["missing"]
    keys = [(row["model"], *row["case"].values(), row["library"]) for row in found["rows"]]
    assert len(keys) == len(set(keys)) == 14
    assert {key[0] for key in keys} == set(MODELS)
    for ours, theirs in zip(found["rows"][::2], found["rows"][1::2], strict=True):
        assert (ours["library"], theirs["library"]) == ("lapgrad", "torch")
        assert ours["value"] == pytest.approx(
            theirs["value"], rel=1e-6 if ours["dtype"] == "float64" else 1e-4
        )
        assert ours["median_s"] > 0
    names = {"sparse-gp-cpu", "models-cpu"}
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    count = torch.get_num_threads()
    assert drawn == {f"{name}-{count}-threads.{kind}" for name in names for kind in ("png", "svg")}

    found["rows"], found["complete"] = found["rows"][:4], False
    (tmp_path / "m.json").write_text(json.dumps(found))
    assert run_command("--output", "m.json", "--resume", "--markdown", "--give-up", "0") == 0
    resumed = read_contents(tmp_path / "m.json")
    assert resumed["complete"]
    assert resumed["rows"][:4] == found["rows"]
    assert [(row["model"], *row["case"].values(), row["library"]) for row in resumed["rows"]] == keys
    assert "| sparse_gp | U = 5, n = 80, d = 4 | lapgrad |" in capsys.readouterr().out
    assert run_command("--output", "m.json", "--resume", "--models", "kalman") == 2
    assert "begun with other models" in capsys.readouterr().err


def test_kernels_dimensions_and_a_large_case_are_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_gp, "LARGE_N", 400)
    monkeypatch.setattr(sparse_gp, "LARGE_INDUCING", 20)
    monkeypatch.setattr(sparse_gp.make_large_problem, "__defaults__", (400,))
    few = ["--models", "sparse_gp,exact_gp", "--inducing", "5", "--give-up", "0"]
    chosen = ["--kernels", "matern52", "--dimensions", "3", "--million"]
    assert run_command(*few, *chosen, "--output", "m.json") == 0
    found = read_contents(tmp_path / "m.json")
    cases = [row["case"] for row in found["rows"] if row["library"] == "lapgrad"]
    assert cases[1:] == [{"U": 20, "n": 400, "d": 8}, {"n": 40, "d": 3, "kernel": "matern52"}]
    bars = {bar["what"].split(": ")[1]: bar for bar in found["bars"]}
    assert 0.0 < bars["float32 against float64, largest relative difference"]["figure"] < 100.0
    assert bars["time over 4 times that of a quarter of the points"]["figure"] > 0.0
    assert found["options"]["kernels"] == ["matern52"]


def test_an_interrupted_run_leaves_a_valid_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = model_runner.measure

    def measure(case: ModelCase, *further: Any, **options: Any) -> Any:
        if case.model == "exact_gp":
            signal.raise_signal(signal.SIGINT)
        return of_all(case, *further, **options)

    monkeypatch.setattr(model_runner, "measure", measure)
    assert run_command("--output", "m.json", "--give-up", "0") == 130
    assert "with --resume continues" in capsys.readouterr().err
    found = read_contents(tmp_path / "m.json")
    assert not found["complete"]
    assert {row["model"] for row in found["rows"]} == {"sparse_gp"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inducing", "81"], "there are 80 rows of data, 81 were asked for"),
        (["--resume"], "--resume needs the file to continue: --output FILE"),
        (["--peer", "gpy", "--peer", "gpy=/bin/true"], "each library can be named once"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "lda"], "'lda' is not one of sparse_gp"),
        (["--peer", "jax"], "one of gpytorch, gpy, gpflow"),
        (["--inducing", "0"], "'0' is not a positive whole number"),
        (["--kernels", "cubic"], "'cubic' is not one of rbf, matern52"),
    ],
)
def test_wrong_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(*options)
    assert message in capsys.readouterr().err


def make_case(prepared: PreparedCase) -> ModelCase:
    return ModelCase("exact_gp", {"n": 3}, 1.0, lambda device: prepared)


def make_evaluation(value: float) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.tensor(value, dtype=torch.float64),)


def test_what_differs_is_not_timed() -> None:
    prepared = PreparedCase(
        {"lapgrad": make_evaluation(1.0), "torch": make_evaluation(1.1)}, tolerances={"torch": 1e-3}
    )
    with pytest.raises(DisagreementError, match=r"exact_gp, n = 3: .* differ by 1\.0e-01"):
        model_runner.measure(make_case(prepared), 1, 0.0, CPU, Peers())


class FakePeer:
    """Answers as a process would."""

    def __init__(self, library: str, value: float, dies: bool = False) -> None:
        self.library, self.value, self.dies = library, value, dies

    def ask(self, what: str, do: str, **request: Any) -> dict[str, Any]:
        if do == "model":
            return {"phases": ["step"], "lacks": None, "value": self.value}
        if do == "sample" and self.dies:
            raise PeerError(self.library, "its process ended")
        return {"sample": {"seconds": 0.5}, "memory": {"bytes": 10**8}, "release": {}}[do]


def test_peers_take_part_if_they_agree_and_live(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = [FakePeer("gpytorch", 1.0001), FakePeer("gpy", 1.5), FakePeer("gpflow", 1.0, dies=True)]
    peers = Peers(facts={guest.library: {} for guest in guests})
    monkeypatch.setattr(Peers, "list_present", lambda self, threads: guests)
    prepared = PreparedCase(
        {"lapgrad": make_evaluation(1.0), "torch": make_evaluation(1.0)},
        {"X": numpy.zeros(2)},
        tolerances=dict.fromkeys(("torch", "gpytorch", "gpy", "gpflow"), 1e-3),
        wanted_speedups={"gpytorch": 2.0},
    )
    rows, bars = model_runner.measure(make_case(prepared), 1, 0.0, CPU, peers)
    assert [row["library"] for row in rows] == ["lapgrad", "torch", "gpytorch"]
    assert (rows[2]["median_s"], rows[2]["extra_bytes"], rows[2]["value"]) == (0.5, 10**8, 1.0001)
    assert "its value differs by 5.0e-01" in peers.facts["gpy"]["lacks"]["exact_gp, n = 3"]
    assert peers.facts["gpflow"]["missing"] == "its process ended"
    (bar,) = bars
    assert bar["what"] == "exact_gp, n = 3: gpytorch / lapgrad, time"
    assert bar["passed"]


def test_a_worker_evaluates_models(tmp_path: Path) -> None:
    class Library:
        device = "cpu"

        def __init__(self) -> None:
            self.models = {
                "sum": lambda X, scale, name: lambda: (scale * X.sum(), X),
                "broken": self.fail_to_measure,
            }

        def fail_to_measure(self, **arguments: Any) -> Any:
            raise RuntimeError("no memory\nat all")

        def wait(self, results: Any) -> None:
            pass

    worker, file = Worker(Library(), {}), tmp_path / "case.npz"
    numpy.savez(file, X=numpy.ones(4), scale=2.0, name="rbf")  # type: ignore[arg-type]
    request = {"model": "sum", "file": str(file)}
    assert worker.model(request) == {"phases": ["step"], "lacks": None, "value": 8.0}
    assert worker.sample({"phase": "step", "calls": 2})["seconds"] > 0
    worker.library.keeps_memory = True
    assert worker.memory({"phase": "step"}) == {"bytes": None}
    assert worker.model({**request, "model": "broken"})["lacks"] == "RuntimeError: no memory"
    assert worker.model({**request, "model": "other"})["lacks"] == "it has no such model"


def test_a_figure_needs_two_sizes() -> None:
    timing = Timing(1.0, 0.9, 1.1, 3)
    row = {"model": "sparse_gp", "case": {"U": 50, "n": 9}, "device": "cuda", "threads": 1}
    rows = [{**row, "library": "lapgrad", "median_s": timing.median, "extra_bytes": None}]
    assert not model_plots.draw_figures(rows)
