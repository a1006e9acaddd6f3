"""`lapgrad reproduce deep_gp_regression`: both models on the same splits, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_data

from lapgrad import cli
from lapgrad_bench import datasets
from lapgrad_bench.experiments import deep_gp_regression as experiment


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_data.write_all(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPGRAD_DATA", str(tmp_path))


def run_command(*options: str) -> int:
    always = ["--inducing", "4", "--steps", "6", "--batch", "9", "--evaluations", "5", "--folds", "1"]
    return cli.main(["reproduce", "deep_gp_regression", *always, *options])


def read_contents() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("deep_gp_regression.json").read_text())
    return found


def select_figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds") and key != "loss"}
        for row in rows
    ]


def test_both_models_see_the_same_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command() == 0
    found = read_contents()
    assert found["kind"] == "deep_gp_regression"
    assert found["complete"]
    assert [(row["dataset"], row["model"]) for row in found["rows"]] == [
        ("kin8nm", "sparse"),
        ("kin8nm", "deep"),
        ("power", "sparse"),
        ("power", "deep"),
    ]
    assert all(row["rows"] == 36 and row["inducing"] == 4 for row in found["rows"])
    sparse, deep = found["rows"][:2]
    first, second = found["bars"][:2]
    assert (first["wanted"], first["figure"], first["sense"]) == (sparse["rmse"], deep["rmse"], "<=")
    assert (second["wanted"], second["figure"], second["sense"]) == (sparse["tll"], deep["tll"], ">=")
    shown = capsys.readouterr().out
    assert "kin8nm" in shown
    assert f"{deep['rmse']:.4g}" in shown


def test_left_and_taken_up_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished models are kept, an unfinished one starts again, and the figures are those of one run."""
    assert run_command("--output", "whole.json") == 0
    learned, asked = experiment.learn_case, 0

    def once_interrupted(case: experiment.Case, *rest: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return learned(case, *rest)

    monkeypatch.setattr(experiment, "learn_case", once_interrupted)
    assert run_command() == 128 + signal.SIGTERM
    partial = read_contents()
    assert not partial["complete"]
    assert len(partial["rows"]) == 2
    assert run_command() == 1
    assert "is there already" in capsys.readouterr().err
    assert run_command("--resume", "--steps", "7") == 1
    assert "was made with steps 6" in capsys.readouterr().err
    assert run_command("--resume") == 0
    assert asked == 5
    assert select_figures(read_contents()["rows"]) == select_figures(
        json.loads(Path("whole.json").read_text())["rows"]
    )


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("--folds", "11")
    assert "there are 10 folds" in capsys.readouterr().err
    Path(datasets.POWER.file).unlink()
    assert run_command() == 1
    assert "power.csv.gz does not exist" in capsys.readouterr().err


def test_figures_are_means_over_folds_that_both_have() -> None:
    def row(fold: int, model: str, rmse: float, tll: float) -> dict[str, Any]:
        return {"dataset": "power", "fold": fold, "model": model, "rmse": rmse, "tll": tll}

    rows = [row(0, "sparse", 2.0, -1.0), row(0, "deep", 1.0, -1.5), row(1, "sparse", 9.0, 9.0)]
    rmse, tll = experiment.compare_models(rows)
    assert (rmse.count, rmse.sparse, rmse.deep, rmse.passed) == (1, 2.0, 1.0, True)
    assert (tll.sparse, tll.deep, tll.passed) == (-1.0, -1.5, False)
    rmse, tll = experiment.compare_models([*rows, row(1, "deep", 5.0, 12.0)])
    assert (rmse.count, rmse.sparse, rmse.deep) == (2, 5.5, 3.0)
    assert (tll.sparse, tll.deep, tll.passed) == (4.0, 5.25, True)
