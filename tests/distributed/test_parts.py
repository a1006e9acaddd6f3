"""The parts of ``lapgrad.distributed`` in one process: launchers, shards, files, errors that travel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from fresh_process import get_output

import lapgrad
from lapgrad.distributed import Checkpoint, Group, MappedRows, ParquetRows, init_group, shard
from lapgrad.distributed import failures as _failures
from lapgrad.distributed import group as _group
from lapgrad.models import GPRegression, SparseGPRegression

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),  # nobody says where rank 0 is
        ({"MASTER_ADDR": "a", "RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"MASTER_ADDR": "a", "SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, (2, 3)),
        ({"MASTER_ADDR": "a", "PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"MASTER_ADDR": "a"}, None),
    ],
)
def test_launchers(
    variables: dict[str, str], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", *(name for pair in _group._LAUNCHERS for name in pair)):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _group._find_launcher() == expected


def test_a_process_alone_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    group = init_group()
    assert (group.rank, group.size, group.is_first) == (0, 1, True)
    assert group.sum_numbers([1.5]) == [1.5]
    with pytest.raises(KeyError, match="mine"), group.expect_sum(1):
        raise KeyError("mine")
    group.close()
    assert _group.as_group("model", None) is None
    with pytest.raises(lapgrad.OptionError, match="group must be"):
        _group.as_group("model", 3)  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_threads_of_a_process_group_end_with_it() -> None:
    """They end although a ``Group`` is alive: threads that outlive the interpreter may abort the process."""
    printed = get_output(
        """
import time
from pathlib import Path

import torch
import torch.distributed as dist
from lapgrad.distributed import init_group

def read(path):
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""

def count_threads():
    return sum("gloo" in read(comm) for comm in Path("/proc/self/task").glob("*/comm"))

def wait_for(condition):
    # A thread takes its name after its start, and stays in /proc for a moment after it was joined.
    end = time.monotonic() + 30.0
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)

group = init_group()
optimiser = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
wait_for(lambda: count_threads() > 0)
assert count_threads() > 0
dist.destroy_process_group()
wait_for(lambda: count_threads() == 0)
print(count_threads(), group.process_group)
""",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        RANK="0",
        WORLD_SIZE="1",
    )
    assert printed.split() == ["0", "None"]


def test_processes_that_have_ended_are_seen() -> None:
    assert not _failures.Member.describe_self().is_known_dead()
    process = subprocess.Popen([sys.executable, "-c", ""])
    host = _failures.Member.describe_self().host
    process.wait()
    assert _failures.Member(host, process.pid).is_known_dead()
    assert not _failures.Member("another host", process.pid).is_known_dead()


def test_errors_travel() -> None:
    error = lapgrad.NotPositiveDefiniteError("it is not", (2,), 3)
    found = _failures.Report.from_error(1, error).make_error(of_all=False)
    assert isinstance(found, lapgrad.NotPositiveDefiniteError)
    assert (str(found), found.item, found.minor) == ("rank 1: it is not", (2,), 3)
    assert _failures.is_shared(found)
    assert not _failures.is_shared(error)
    assert str(_failures.Report.from_error(1, error).make_error(of_all=True)) == "it is not"
    found = _failures.Report.from_error(1, KeyError("x")).make_error(of_all=False)
    assert isinstance(found, lapgrad.ProcessGroupError)
    assert found.ranks == (1,)
    # An error that was raised from one that all ranks know is known, too.
    later = lapgrad.FitError("later", 1)
    later.__cause__ = found
    assert _failures.is_shared(later)


class _ThirdOfFour(Group):
    """What ``shard`` knows of a group."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.size = 2, 4


def test_shards(tmp_path: Path) -> None:
    X = torch.arange(20.0).reshape(10, 2)
    assert torch.equal(shard(X, group=_ThirdOfFour()), X[5:7])
    np.save(tmp_path / "X.npy", X.numpy())
    rows = shard(tmp_path / "X.npy", group=_ThirdOfFour())
    assert rows.shape == (2, 2)
    assert torch.equal(rows.read_rows(slice(1, 2)), X[6:7])
    assert torch.equal(rows.read_sample(torch.tensor([0, 1])), X[5:7])
    assert torch.equal(shard(X.numpy(), group=Group()), X)
    with pytest.raises(lapgrad.ShapeError, match="10, 9 rows"):
        shard(X, X[:9], group=Group())
    with pytest.raises(lapgrad.OptionError, match="a source must be"):
        shard(3, group=Group())


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", np.arange(3))
    with pytest.raises(lapgrad.DTypeError, match="int64"):
        MappedRows(tmp_path / "whole.npy")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    with pytest.raises(lapgrad.ShapeError, match=r"\(2, 2, 2\)"):
        MappedRows(tmp_path / "cube.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(lapgrad.FileFormatError, match=r"text\.npy"):
        MappedRows(tmp_path / "text.npy")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(lapgrad.FileFormatError, match=r"text\.parquet"):
        ParquetRows(tmp_path / "text.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(lapgrad.FileFormatError, match="no column 'b'"):
        ParquetRows(tmp_path / "a.parquet", ["b"])


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(lapgrad.MissingDependencyError, match="pyarrow"):
        ParquetRows("x.parquet")


def test_rows_of_parquet_files(tmp_path: Path) -> None:
    values = torch.randn(50, dtype=torch.float64)
    table = pyarrow.table({"a": values.numpy(), "b": -values.numpy()})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=7)
    rows = ParquetRows(tmp_path / "x.parquet", dtype=torch.float32)
    expected = torch.stack([values, -values], 1).float()
    for begin, end in ((0, 50), (6, 8), (13, 30), (49, 50), (20, 20)):
        assert torch.equal(rows.read_rows(slice(begin, end)), expected[begin:end])
    assert torch.equal(rows.select(10, 20).read_rows(slice(2, 5)), expected[12:15])


def test_progress_of_rows() -> None:
    """The progress of an evaluation counts all rows of all passes."""
    X = torch.randn(300, 2, dtype=torch.float64)
    model = SparseGPRegression(X, torch.sin(X.sum(1)), inducing=5, generator=0, chunk=70, group=Group())
    told: list[tuple[int, int]] = []
    model.row_counter.listener = lambda done, total: told.append((done, total))
    model.loss()
    assert told[-1] == (900, 900)
    assert len(told) > 6


def test_checkpoints_refuse_what_they_cannot_resume(tmp_path: Path) -> None:
    x = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)
    model = GPRegression(x, torch.sin(x))
    with pytest.raises(lapgrad.OptionError, match="every"):
        Checkpoint(tmp_path / "fit.pt", model, every=0)
    with pytest.raises(lapgrad.OptionError, match="no fit that can be resumed"):
        Checkpoint(tmp_path / "fit.pt", torch.nn.Linear(1, 1))
    (tmp_path / "fit.pt").write_text("no checkpoint")
    with pytest.raises(lapgrad.FileFormatError, match="not a checkpoint"):
        Checkpoint(tmp_path / "fit.pt", model).load()
