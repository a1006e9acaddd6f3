"""Results files: written as a whole or not at all, read with an explanation of what is wrong."""

import json
import os

import pytest

from lapgrad import FileFormatError
from lapgrad_bench.common.results import FORMAT, Results


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "down" / "results.json"
    results = Results("ops", "lapgrad bench ops", peers={"jax": {"missing": "not installed"}})
    results.rows.append({"operator": "potrf", "shape": [3, 8, 8], "median_s": 0.25})
    results.bars.append({"what": "potrf 8", "figure": 2.5, "passed": True})
    results.write(path)
    read = Results.load(path, "ops")
    assert read.rows == results.rows
    assert read.bars == results.bars
    assert read.peers == results.peers
    assert read.command == "lapgrad bench ops"
    assert not read.complete
    assert json.loads(path.read_text())["lapgrad_results"] == FORMAT


def test_the_machine_is_described(tmp_path):
    machine = Results("models").machine
    wanted = {"date", "load_average", "environment", "cpu", "cuda", "torch", "versions", "commit", "threads"}
    assert wanted <= machine.keys()
    assert machine["versions"]["torch"]


def test_what_is_not_finite_becomes_null(tmp_path):
    path = tmp_path / "results.json"
    Results("ops", rows=[{"a": float("nan"), "b": [float("inf"), 1.0], "c": (2,)}]).write(path)
    assert Results.load(path).rows == [{"a": None, "b": [None, 1.0], "c": [2]}]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    Results("ops", rows=[{"a": 1}]).write(path)

    def fails(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        Results("ops", rows=[{"a": 2}]).write(path)
    assert Results.load(path).rows == [{"a": 1}]
    assert os.listdir(tmp_path) == ["results.json"]


def test_an_interruption_just_after_the_write_is_no_other_error(tmp_path, monkeypatch):
    path, replace = tmp_path / "results.json", os.replace

    def interrupt_after_rename(source, target):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt_after_rename)
    with pytest.raises(KeyboardInterrupt):
        Results("ops", rows=[{"a": 1}]).write(path)
    assert Results.load(path).rows == [{"a": 1}]


def test_permissions_are_those_of_other_files(tmp_path):
    path, other = tmp_path / "results.json", tmp_path / "other"
    other.touch()
    Results("ops").write(path)
    assert path.stat().st_mode == other.stat().st_mode
    path.chmod(0o640)
    Results("ops").write(path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json: there is no such file"):
        Results.load(tmp_path / "none.json")


def _make_text(**changes):
    return json.dumps({"lapgrad_results": 1, "kind": "ops", **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a results file of lapgrad: it has no 'lapgrad_results'"),
        ('{"machine": {}, "measurements": []}', "have to be measured again"),
        (_make_text(lapgrad_results=99), "format 99, and this lapgrad knows formats up to 1"),
        (_make_text(kind="cake"), "kind 'cake'; known are"),
        (_make_text(kind="models"), "kind 'models'; 'ops' was wanted"),
        (_make_text(), "has no 'machine'"),
        (_make_text(machine={}, rows={}), "'rows' is a dict; a list was wanted"),
        (_make_text(machine={}, rows=[1]), "every row has to be an object"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content, message, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=message) as raised:
        Results.load(path, "ops")
    assert str(path) in str(raised.value)
