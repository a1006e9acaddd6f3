"""Other libraries in processes of their own: what they take part in, and what happens when they cannot."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lapgrad import cli
from lapgrad_bench.bench.ops import runner
from lapgrad_bench.bench.ops.cases import OPERATORS, Case
from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.bench.ops.tables import list_peer_notes
from lapgrad_bench.bench.peers import client
from lapgrad_bench.bench.peers.client import Peer, PeerError, Peers, PeerSpec
from lapgrad_bench.bench.peers.worker import in_jax
from lapgrad_bench.bench.peers.worker.formulas import FORMULAS

FAKE = Path(__file__).parent / "fake_peers"
JAX = PeerSpec("jax", sys.executable)
SYRK = Case(OPERATORS["syrk"], Shape(4, 3), torch.float64)


@pytest.fixture(autouse=True)
def small_yardstick(monkeypatch):
    """Use a small matrix product as the unit of speed, so that measuring it takes no time."""
    monkeypatch.setattr("lapgrad_bench.bench.ops.gemm.choose_order", lambda device, threads: 32)


@pytest.fixture
def fake_jax(monkeypatch):
    """A fake JAX in the Python of the tests; returns a function that sets how it fails."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    return lambda trouble: monkeypatch.setenv("FAKE_JAX", trouble)


def measure_case(case=SYRK, spec=JAX, timeout=30.0, phases=runner.PHASES):
    with Peers([spec], timeout=timeout) as peers:
        return runner.measure(case, phases, 1, seconds=0, peers=peers), peers.facts


def test_a_peer_is_timed_beside_torch(fake_jax):
    found, facts = measure_case()
    assert [m.phase for m in found] == ["forward", "backward", "step"]
    for m in found:
        assert m.others["jax"].samples >= 3
        assert [row["library"] for row in m.make_rows()] == ["lapgrad", "torch", "jax"]
    assert facts["jax"]["version"] == "0.0.fake"
    assert facts["jax"]["executable"] == sys.executable
    assert not facts["jax"]["lacks"]


def test_float32_and_several_inputs(fake_jax):
    (m,), _ = measure_case(Case(OPERATORS["gemm2"], Shape(3, 2, (2,)), torch.float32), phases=["backward"])
    assert m.others["jax"].median > 0


def test_a_peer_without_the_function_is_left_out_of_the_case(fake_jax):
    (m,), facts = measure_case(Case(OPERATORS["maketrian"], Shape(4, 4), torch.float64), phases=["forward"])
    assert not m.others
    assert "AttributeError" in facts["jax"]["lacks"]["maketrian 4 float64"]
    assert "missing" not in facts["jax"]


def test_a_peer_that_computes_something_else_is_not_timed(fake_jax):
    fake_jax("wrong")
    found, facts = measure_case()
    assert not any(m.others for m in found)
    assert facts["jax"]["lacks"]["syrk 4×3 float64"].startswith(
        "not timed: result 0 of jax differs from torch"
    )


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("does not load", "RuntimeError: no such backend"),
        ("dies on load", r"ended while it was loaded \(exit code 7: out of luck\)"),
    ],
)
def test_a_peer_that_does_not_load_is_missing(trouble, why, fake_jax):
    fake_jax(trouble)
    found, facts = measure_case()
    assert all(m.ours.samples >= 3 for m in found)
    assert re.search(why, facts["jax"]["missing"])


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("dies:0", r"ended in syrk 4×3 float64"),
        ("dies:9", r"ended in syrk 4×3 float64 (forward|backward|step) \(exit code 3"),
        ("raises:9", "failed in syrk 4×3 float64 (forward|backward|step): ValueError: cannot do that"),
    ],
)
def test_a_peer_that_fails_is_started_anew_and_then_dropped(trouble, why, fake_jax):
    """The others go on."""
    other = Case(OPERATORS["gemm2"], Shape(3, 2), torch.float64)
    fake_jax(trouble)
    with Peers([JAX], timeout=30.0) as peers:
        found = runner.measure(SYRK, runner.PHASES, 1, seconds=0, peers=peers)
        assert [m.phase for m in found] == ["forward", "backward", "step"]
        assert all(m.ours.samples >= 3 for m in found)
        assert re.search(why, peers.facts["jax"]["lacks"]["syrk 4×3 float64"])
        fake_jax("")
        (again,) = runner.measure(other, ["forward"], 1, seconds=0, peers=peers)
        assert again.others["jax"].samples >= 3
        peers.record_failure("jax", str(other), "died once more")
        assert peers.facts["jax"]["missing"] == "died once more"
        (without,) = runner.measure(other, ["forward"], 1, seconds=0, peers=peers)
        assert not without.others
        assert "syrk 4×3 float64" in peers.facts["jax"]["lacks"]


def test_a_peer_that_hangs_is_given_up(fake_jax):
    fake_jax("hangs:9")
    found, facts = measure_case(timeout=1.0)
    assert len(found) == 3
    assert facts["jax"]["lacks"]["syrk 4×3 float64"].startswith("no answer within 1 s in syrk 4×3 float64")


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/no/such/python", "there is no /no/such/python"),
        (os.devnull, f"{os.devnull} cannot be run: Permission denied"),
        ("/bin/true", r"its process ended while it was loaded (exit code 0)"),
        (None, "not installed in this Python; --peer jax=/path/to/python names one that has it"),
    ],
)
def test_a_python_that_does_not_do(python, why, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found, facts = measure_case(spec=PeerSpec("jax", python), phases=["forward"])
    assert len(found) == 1
    assert facts == {"jax": {"missing": why}}


def test_a_library_of_this_python_needs_no_path(fake_jax, monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))
    (m,), _ = measure_case(spec=PeerSpec("jax"), phases=["forward"])
    assert "jax" in m.others


def test_a_peer_on_another_device_is_missing(fake_jax):
    with pytest.raises(PeerError, match=r"jax 0\.0\.fake sees no cuda device"):
        Peer(JAX, 1, "cuda")


def test_a_peer_rests_between_its_turns_and_ends_with_the_run(fake_jax):
    with Peers([JAX]) as peers:
        (peer,) = peers.list_present(1)
        process = peer._process
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            deadline = time.monotonic() + 5.0
            while "T (stopped)" not in status.read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "T (stopped)" in status.read_text()
        peer.ask("", do="release")
        assert process.poll() is None
        assert peers.list_present(1) == [peer]
    assert process.poll() == -signal.SIGKILL


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the worker asks Linux to end with its parent"
)
def test_a_stopped_peer_ends_with_a_parent_that_was_killed(fake_jax):
    source = Path(runner.__file__).parents[3]
    script = (
        "import os, sys; from lapgrad_bench.bench.peers.client import *\n"
        f"peer = Peer(PeerSpec('jax', {sys.executable!r}), 1, 'cpu')\n"
        "print(peer._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{FAKE}{os.pathsep}{source}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    worker = Path(f"/proc/{int(done.stdout)}")
    deadline = time.monotonic() + 10.0
    while worker.exists() and "Z (zombie)" not in _read_status(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not worker.exists() or "Z (zombie)" in _read_status(worker)


def _read_status(process):
    try:
        return (process / "status").read_text()
    except OSError:
        return ""


def test_command_shows_peers_and_what_they_lack(fake_jax, tmp_path, capsys):
    file = tmp_path / "ops.json"
    options = ["--ops", "syrk,maketrian", "--sizes", "4", "--batches", "", "--dtypes", "float64"]
    peers = ["--peer", f"jax={sys.executable}", "--peer", "mxnet=/no/python"]
    assert cli.main(["bench", "ops", *options, "--seconds", "0.001", *peers, "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    headings = next(line for line in printed.splitlines() if line.startswith("operator"))
    assert {"ms", "torch", "jax"} <= set(headings.split())
    assert "mxnet: missing: there is no /no/python" in printed
    assert "jax 0.0.fake: not timed on maketrian 4 float64" in printed
    written = json.loads(file.read_text())
    assert written["peers"]["mxnet"]["missing"] == "there is no /no/python"
    assert {row["library"] for row in written["rows"] if row["operator"] == "syrk"} == {
        "lapgrad",
        "torch",
        "jax",
    }
    assert {row["library"] for row in written["rows"] if row["operator"] == "maketrian"} == {
        "lapgrad",
        "torch",
    }


@pytest.mark.parametrize("text", ["numpy", "jax=", "=python"])
def test_wrong_peers_are_named(text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "ops", "--peer", text])
    assert stop.value.code == 2
    assert f"{text!r} is not a peer" in capsys.readouterr().err


def test_a_library_is_named_once(capsys):
    assert cli.main(["bench", "ops", "--peer", "jax", "--peer", "jax=/bin/true"]) == 2
    assert "each library can be named once" in capsys.readouterr().err


def test_notes_put_cases_with_the_same_reason_together():
    lacks = {f"potrf {n} float64": "why" for n in (1, 2, 3, 4)}
    (note,) = list_peer_notes({"jax": {"version": "1", "lacks": lacks}})
    assert note == "jax 1: not timed on potrf 1 float64, potrf 2 float64, potrf 3 float64 and 1 more: why"


def test_there_is_a_formula_for_every_operator():
    """Each operator has a formula for peers, unless they offer it under its own name."""
    offered = {name for name in OPERATORS if hasattr(in_jax.Library, name.rpartition(".")[2])}
    assert "linalg.lstsq" in offered
    assert FORMULAS.keys() | offered == OPERATORS.keys()


def test_the_worker_needs_no_new_python_and_nothing_of_lapgrad():
    """The worker must run on Python 3.7: MXNet has no wheels for newer ones."""
    files = sorted((Path(client.__file__).parent / "worker").glob("*.py"))
    assert len(files) == 9
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 7))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                )
                foreign = ("lapgrad",) if file.stem == "in_gpytorch" else ("lapgrad", "torch")
                assert not any(name.startswith(foreign) for name in names)
