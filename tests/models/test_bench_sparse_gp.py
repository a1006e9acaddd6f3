"""The benchmark of the sparse Gaussian process: like is compared with like, and its figures are written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close

from lapgrad_bench import datasets
from lapgrad_bench.bench import sparse_gp


def test_peers_compute_the_same() -> None:
    problem = sparse_gp.Problem.of(datasets.stand_in(60), 7)
    ours, theirs = sparse_gp.ours(problem)(), sparse_gp.written_out(problem)()
    assert_all_close(ours, theirs, HIGHER_ORDER)


@pytest.mark.parametrize("name", ["gpytorch", "GPy"])
def test_other_libraries_compute_the_same(name: str) -> None:
    pytest.importorskip(name)
    problem = sparse_gp.Problem.of(datasets.stand_in(60), 7)
    peer = {"gpytorch": sparse_gp.gpytorch, "GPy": sparse_gp.gpy}[name]
    assert float(peer(problem)()[0]) == pytest.approx(float(sparse_gp.ours(problem)()[0]), rel=1e-3)


def test_inducing_inputs_are_the_same_every_time() -> None:
    data = datasets.stand_in(100)
    one, other = (sparse_gp.Problem.of(data, 50) for _ in range(2))
    assert torch.equal(one.Z, other.Z)
    assert not torch.equal(one.Z, sparse_gp.Problem.of(data, 51).Z[:50])


def test_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPGRAD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    sparse_gp.add_arguments(parser)
    file = tmp_path / "figures.json"
    options = ["--rows", "80", "--inducing", "5", "--seconds", "0", "--markdown", "--output", str(file)]
    assert sparse_gp.run(parser.parse_args(options)) == 0
    printed = capsys.readouterr()
    assert "Made-up data" in printed.err
    assert "| U = 5, torch autograd / lapgrad |" in printed.out
    found = json.loads(file.read_text())["bars"]
    assert {figure["what"].split(",")[0] for figure in found} == {"U = 5"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--inducing", "many"])
