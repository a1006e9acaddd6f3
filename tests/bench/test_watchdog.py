"""A call that hangs or crashes in a benchmark costs one figure: it is named, and the run goes on."""

import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.measure import activity, worker_process
from lapgrad_bench.bench.ops import runner, tables
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops.bars import Bar
from lapgrad_bench.bench.ops.cases import OPERATORS, Case
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.peers.client import Peers, PeerSpec
from lapgrad_bench.bench.watched import watchdog
from lapgrad_bench.bench.watched.watchdog import FailedError, Measurer, WatchedMeasurer
from lapgrad_bench.common.results import Results
from lapgrad_bench.common.resumption import UsageError

PROCESSES = Path(__file__).parent / "fake_processes"
PATIENCE = 1.0
ROWS = [{"library": name, "median_s": 1.0, "value": 2.0} for name in ("lapgrad", "jax")]


@pytest.fixture
def actor(monkeypatch):
    """A measurer with a short limit, whose process does what the test's request says."""
    command = [sys.executable, "-S", str(PROCESSES / "actor.py"), str(Path(activity.__file__).parent)]
    monkeypatch.setattr(watchdog, "make_child_command", lambda: command)
    with WatchedMeasurer(Peers(), PATIENCE) as measurer:
        yield measurer


def measure(measurer, *deeds, left_out=None, **then):
    play = [[library, f"{deed} here", deed, seconds] for library, deed, seconds in deeds]
    return measurer.measure("case", left_out, play=play, then={"rows": ROWS, **then})


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        ("hang", "torch did not finish within 1 s (hang here)"),
        ("crash", "torch crashed: signal SIGABRT (crash here)"),
        ("raise", "torch failed: torch cannot do that (raise here)"),
    ],
)
def test_torch_is_left_out_where_it_fails(deed, error, actor):
    before = measure(actor)["pid"]
    began = time.monotonic()
    answer = measure(actor, ("lapgrad", "sleep", 0.1), ("torch", deed, 0.0))
    assert time.monotonic() - began < PATIENCE + 20.0
    assert answer["rows"] == [
        ROWS[0],
        {"library": "torch", "median_s": None, "value": None, "samples": 0, "error": error},
        ROWS[1],
    ]
    assert answer["pid"] != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert measure(actor)["pid"] == answer["pid"], "the new process stays"


@pytest.mark.parametrize("library", ["lapgrad", "torch.mm", ""])
def test_what_every_case_needs_is_not_left_out(library, actor):
    with pytest.raises(FailedError, match=r"(lapgrad|torch\.mm|itself) did not finish within 1 s") as raised:
        measure(actor, (library, "hang", 0.0))
    assert raised.value.library == library
    assert measure(actor)["rows"] == ROWS, "the next case is measured"


def test_libraries_that_failed_before_are_not_tried_again(actor):
    answer = measure(actor, ("torch", "crash", 0.0), left_out={"torch": "torch crashed before"})
    assert answer["rows"][1]["error"] == "torch crashed before"


def test_several_libraries_may_fail(actor):
    answer = measure(actor, ("torch", "crash", 0.0), ("torch-graph", "crash", 0.0))
    failed = {row["library"] for row in answer["rows"] if "error" in row}
    assert failed == {"torch", "torch-graph"}


def test_a_limit_is_that_of_one_call_not_of_a_case(actor):
    steps = [("torch", "sleep", 0.2 * PATIENCE)] * 7
    assert measure(actor, *steps)["rows"] == ROWS


def test_peers_have_a_limit_of_their_own(actor):
    assert measure(actor, ("", "unlimited", 1.5 * PATIENCE))["rows"] == ROWS


def test_a_disagreement_leaves_the_process_as_it_is(actor):
    before = measure(actor)["pid"]
    with pytest.raises(DisagreementError, match="differs from torch"):
        measure(actor, disagreement="result 0 differs from torch")
    assert measure(actor)["pid"] == before


def test_what_became_of_peers_is_kept_for_the_next_process(monkeypatch, actor):
    actor.peers.specs = [PeerSpec("jax")]
    measure(actor, facts={"jax": {"version": "1"}}, failed=["jax"])
    assert actor.peers.facts == {"jax": {"version": "1"}}
    actor._end()
    answer = measure(actor)
    assert answer["facts"] == {"jax": {"version": "1"}}
    assert answer["failed"] == ["jax"]


def test_ctrl_c_ends_a_process_that_hangs(actor):
    pid = measure(actor)["pid"]
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), actor:
        measure(actor, ("", "unlimited", 60.0))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_does_not_start_is_an_error(code, monkeypatch):
    command = [sys.executable, "-S", "-c", f"raise SystemExit({code})"]
    monkeypatch.setattr(watchdog, "make_child_command", lambda: command)
    with (
        WatchedMeasurer(Peers(), PATIENCE) as measurer,
        pytest.raises(UsageError, match=f"could not be started: it ended: exit code {code}"),
    ):
        measure(measurer)


def test_calls_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "record"
    path.write_bytes(bytes(activity.SharedActivity.SIZE))
    with path.open("r+b") as file:
        writer, reader = (activity.SharedActivity(file.fileno(), 5.0) for _ in range(2))
        writer.begin("torch", "süß" * 100, extra=2.0)
        call = reader.read()
        assert (call.library, call.limit) == ("torch", 7.0)
        assert call.what.startswith("süßsüß")
        assert 0.0 < call.seconds_left <= 7.0
        writer.begin_unlimited("a peer's turn")
        assert reader.read().seconds_left == float("inf")
        for one in (writer, reader):
            one.close()


# The whole command. torch is loaded anew after each failure: few failures, seen from all sides.


@pytest.fixture
def faulty_torch(monkeypatch):
    command = [sys.executable, str(PROCESSES / "faulty_torch.py")]
    monkeypatch.setattr(watchdog, "make_child_command", lambda: command)
    # The call that hangs has a shorter limit than the call before it, so the watchdog must look often.
    monkeypatch.setattr(worker_process, "_LONGEST_WAIT", 0.1)


def test_a_run_goes_on_and_names_what_hangs_and_crashes(faulty_torch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "ops.json"
    common = ["--batches", "", "--dtypes", "float64", "--threads", "1", "--seconds", "0.001"]
    options = ["--ops", "syrk,trmm,copyltu", "--sizes", "4", *common]
    assert cli.main(["bench", "ops", *options, "--output", str(file), "--plots", str(tmp_path)]) == 0
    found = Results.load(file, "ops")
    assert found.complete
    hung, crashed = "torch did not finish within 1 s", "torch crashed: signal SIGSEGV"
    for name, error in {"syrk": hung, "trmm": crashed, "copyltu": None}.items():
        for phase in ("forward", "backward"):
            rows = [row for row in found.rows if (row["operator"], row["phase"]) == (name, phase)]
            ours, theirs = rows
            assert (ours["library"], theirs["library"]) == ("lapgrad", "torch")
            assert ours["median_s"] > 0
            assert ours["gemm_rate"] > 0
            assert theirs.get("error") == (error and f"{error} (its first call)")
            assert (theirs["median_s"] is None) == (error is not None)
    printed = capsys.readouterr().out
    assert "syrk 4 float64, 1 threads: torch did not finish within 1 s (its first call)" in printed
    assert "trmm 4 float64, 1 threads: torch crashed: signal SIGSEGV (its first call)" in printed
    cells = [line[5] for line in tables.make_timing_table(found.rows)[1] if line[0] in ("syrk", "trmm")]
    assert cells == [hung] * 2 + ["torch crashed"] * 2
    assert hung in tables.make_short_table(found.rows)[1][0]

    # Cases that failed are not repeated, neither by a resumed run nor by one that compares with this file.
    assert cli.main(["bench", "ops", *options, "--output", str(file), "--resume"]) == 0
    assert Results.load(file).rows == found.rows
    assert cli.main(["bench", "ops", "--compare", str(file), "--with", str(file)]) == 0
    assert "6 figures compared: 0 worse" in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert cli.main(["report", str(file), "--output", str(page)]) == 0
    assert (
        "torch, syrk 4 float64 forward: torch did not finish within 1 s (its first call)" in page.read_text()
    )


def test_models_go_on_without_torch(faulty_torch, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LAPGRAD_DATA", raising=False)
    file = tmp_path / "models.json"
    options = ["--models", "mvn_nll,kalman", "--quick", "--seconds", "0", "--threads", "1"]
    assert cli.main(["bench", "models", *options, "--output", str(file)]) == 0
    rows = {(row["model"], row["library"]): row for row in Results.load(file, "models").rows}
    assert rows["mvn_nll", "lapgrad"]["median_s"] > 0
    assert rows["mvn_nll", "torch"]["error"] == "torch did not finish within 1 s (its first call)"
    assert rows["kalman", "torch"]["median_s"] > 0
    assert "mvn_nll, n = 500: torch did not finish within 1 s" in capsys.readouterr().out


def test_a_case_in_which_lapgrad_fails_is_named_and_the_others_are_timed(monkeypatch, capsys):
    real = Measurer.ask

    def ask(self, request):
        if request["item"]["operator"] == "syrk":
            raise FailedError("lapgrad", "crashed: signal SIGSEGV", "backward")
        return real(self, request)

    monkeypatch.setattr(Measurer, "ask", ask)
    options = ["--ops", "syrk,copyltu", "--sizes", "4", "--batches", "", "--dtypes", "float64"]
    assert cli.main(["bench", "ops", *options, "--threads", "1", "--seconds", "0.001", "--give-up", "0"]) == 1
    shown = capsys.readouterr()
    named = "not timed: syrk 4 float64, 1 threads: lapgrad crashed: signal SIGSEGV (backward)"
    assert named in shown.err
    assert "copyltu" in shown.out
    assert "syrk" not in shown.out


def test_a_bar_that_cannot_be_measured_is_missed_and_tried_again_later(monkeypatch, tmp_path, capsys):
    table = [Bar(f"potrf {n} forward", "≥", 2.0, lambda bench: 2.5) for n in (1, 2)]
    monkeypatch.setattr("lapgrad_bench.bench.ops.bars.list_bars", lambda machine: table)
    real, hangs = Measurer.ask, ["potrf 1 forward"]

    def ask(self, request):
        if request["what"] in hangs:
            raise FailedError("torch", "did not finish within 1 s", "forward")
        return real(self, request)

    monkeypatch.setattr(Measurer, "ask", ask)
    options = ["--bars", "--strict", "--give-up", "0", "--output", str(tmp_path / "bars.json")]
    assert cli.main(["bench", "ops", *options]) == 1
    shown = capsys.readouterr()
    assert "not measured: potrf 1 forward: torch did not finish within 1 s (forward)" in shown.err
    assert "1 of 2 bars reached" in shown.out
    hangs.clear()
    assert cli.main(["bench", "ops", *options, "--resume"]) == 0
    assert "2 of 2 bars reached" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["-1", "soon"])
def test_a_limit_is_a_number_of_seconds(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "ops", f"--give-up={text}"])
    assert f"{text!r} is not a positive number of seconds" in capsys.readouterr().err


def test_peers_are_compared_with_lapgrad_where_torch_is_left_out(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "fake_peers"))
    hanging = dataclasses.replace(OPERATORS["syrk"], peer=None)
    case = Case(hanging, Shape(4, 3), torch.float64)
    with Peers([PeerSpec("jax", sys.executable)], timeout=30.0) as peers:
        (found,) = runner.measure(case, ["backward"], 1, seconds=0, peers=peers, with_torch=False)
        assert [row["library"] for row in found.make_rows()] == ["lapgrad", "jax"]
        monkeypatch.setenv("FAKE_JAX", "wrong")
        peers.record_failure("jax", "another case", "died")
        (alone,) = runner.measure(case, ["backward"], 1, seconds=0, peers=peers, with_torch=False)
        assert [row["library"] for row in alone.make_rows()] == ["lapgrad"]
        assert "of jax differs from lapgrad by" in peers.facts["jax"]["lacks"][str(case)]
