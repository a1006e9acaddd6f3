"""Data files: what is read, and the errors for files that are missing or broken."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import tiny_data
import torch

from lapgrad import FileFormatError, OptionError
from lapgrad_bench import datasets


def test_inputs_and_targets_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_data.write_all(tmp_path, monkeypatch)
    loaded = {name: datasets.load(name, tmp_path) for name in datasets.TASKS}
    assert {name: tuple(X.shape) for name, (X, _) in loaded.items()} == {
        "naval1": (40, 16),
        "naval2": (40, 16),
        "kin8nm": (40, 8),
        "power": (40, 4),
    }
    assert torch.equal(loaded["naval1"][0], loaded["naval2"][0])
    for name, shift in (("naval1", 0.0), ("naval2", 1.0), ("power", 0.0)):
        X, y = loaded[name]
        assert torch.equal(y, torch.sin(X[:, 0] + shift) + 3.0)


def test_the_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_data.write_all(tmp_path, monkeypatch)
    monkeypatch.setenv("LAPGRAD_DATA", str(tmp_path))
    assert len(datasets.load("power")[0]) == 40


@pytest.mark.parametrize(("name", "source"), [("power", "C5002N"), ("naval2", "C5K31K"), ("kin8nm", "DELVE")])
def test_missing_files_can_be_had(name: str, source: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"does not exist.*--data-dir.*LAPGRAD_DATA.*{source}"):
        datasets.load(name, tmp_path)


NAMES = b"AT,V,AP,RH,PE\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "first line has 0 names, 5 are wanted"),
        (b"AT,V,AP,PE\n1,2,3,4\n", "first line has 4 names, 5 are wanted"),
        (NAMES, "nothing below its first line"),
        (NAMES + b"1,2,3,4,5\n1,2,3,4\n", "line 3 has 4 cells, 5 are wanted"),
        (NAMES + b"1,2,3,4,five\n", "line 2: .*'five'"),
        (NAMES + b"1,2,nan,4,5\n", "line 2 holds a NaN or an infinity"),
        (NAMES + b"1,2,3,4,\xff\n", "not a gzipped text file"),
    ],
)
def test_tables_of_something_else_are_told(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "power.csv.gz").write_bytes(gzip.compress(text))
    with pytest.raises(FileFormatError, match=rf"power.csv.gz: .*{message}.*C5002N"):
        datasets.load("power", tmp_path)


def test_broken_files_are_told(tmp_path: Path) -> None:
    text = NAMES + b"1,2,3,4,5\n"
    for content in (text, gzip.compress(text)[:-9]):
        (tmp_path / "power.csv.gz").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"power\.csv\.gz: it is not a gzipped text file"):
            datasets.load("power", tmp_path)


def test_another_file_than_the_original_is_used_with_a_warning(tmp_path: Path) -> None:
    tiny_data.write(tmp_path, datasets.POWER)
    with pytest.warns(UserWarning, match="sha256 is another one.*40 rows, 9568 in the original"):
        X, _ = datasets.load("power", tmp_path)
    assert X.shape == (40, 4)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(OptionError, match="'boston'"):
        datasets.load("boston")


def test_columns_that_do_not_vary_become_zero() -> None:
    assert datasets.standardise(torch.tensor([[1.0, 7.0], [3.0, 7.0]])).tolist() == [[-1, 0], [1, 0]]
