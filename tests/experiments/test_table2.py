"""`lapgrad reproduce table2`: digits from files, runs that are interrupted and resumed, files of results."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lapgrad import FileFormatError, cli
from lapgrad.models import DeepGP
from lapgrad.models._storage.archive import write_archive
from lapgrad_bench.experiments import deep_run, mnist, plots_table2, table2
from lapgrad_bench.experiments.interruption import StopRequest
from lapgrad_bench.experiments.mnist import Scaling

ENDINGS = {".json", ".png", ".svg", "-2-3.png", "-2-3.pt", "-2-3.checkpoint.pt"}


def idx3(count: int, seed: int = 0) -> bytes:
    """Return a file in MNIST's format, with images of a bright spot near the middle."""
    source = torch.Generator().manual_seed(seed)
    centres = 10.0 + 8.0 * torch.rand(count, 2, generator=source)
    x = torch.arange(28.0)
    far = (x[:, None] - centres[:, None, None, 0]) ** 2 + (x - centres[:, None, None, 1]) ** 2
    pixels = (255.0 * torch.exp(-far / 20.0)).to(torch.uint8)
    header = b"\x00\x00\x08\x03" + b"".join(number.to_bytes(4, "big") for number in (count, 28, 28))
    return header + bytes(pixels.flatten().tolist())


@pytest.fixture(autouse=True)
def _few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mnist_train_images.idx3.gz").write_bytes(gzip.compress(idx3(60)))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx3(20, 1)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPGRAD_DATA", str(tmp_path))
    monkeypatch.setattr(deep_run, "LOOK_EVERY", 2)
    return


def command(*options: str) -> int:
    sizes = [
        "--inducing",
        "5",
        "--hidden",
        "8",
        "--batch",
        "20",
        "--samples",
        "10",
        "--tests",
        "10",
        "--refine",
        "3",
    ]
    return cli.main(["reproduce", "table2", "--arch", "2-3", *sizes, *options])


def contents(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "table2.json").read_text())
    return found


def test_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--steps", "6", "--output", "out") == 0
    found = contents("out")
    assert found["kind"] == "table2"
    assert found["complete"]
    assert found["command"].startswith("lapgrad reproduce table2 --arch 2-3")
    bounds = [row for row in found["rows"] if "elbo" in row]
    assert [row["step"] for row in bounds] == [2, 4, 6]
    assert bounds[-1]["epoch"] == 2.0
    plain, test = [row for row in found["rows"] if "test_ll" in row]
    assert (plain["refine"], test["refine"]) == (0, 3)
    assert test["samples"] == 10
    assert test["test_images"] == 10
    assert math.isfinite(test["test_ll"] + test["test_ll_standard_error"] + test["test_ll_sampling_error"])
    names = {path.name for path in Path("out").iterdir()}
    assert {name.removeprefix("table2") for name in names} == ENDINGS
    model = DeepGP.load("out/table2-2-3.pt")
    assert model.widths == [2, 3]
    assert f"{test['test_ll']:.2f}" in capsys.readouterr().out
    headings, (line,) = table2.make_table(found["rows"])
    shown = dict(zip(headings, line, strict=True))
    assert shown["test, nats"] == f"{test['test_ll']:.2f}"
    assert shown["unrefined"] == f"{plain['test_ll']:.2f}"
    assert shown["steps"] == "6"


def test_figures_beside_those_of_the_paper() -> None:
    common = {"step": 1, "seconds": 1.0, "samples": 10, "refine": 0, "preprocessing": "unit"}
    errors = {"test_ll_standard_error": 1.0, "test_ll_sampling_error": 0.1}
    rows = [
        {"arch": arch, "test_ll": value, **common, **errors}
        for arch, value in (("5", 320.0), ("10-50", 700.0), ("5-20-50", 650.0))
    ]
    headings, lines = table2.make_table(rows)
    at = headings.index("SV-DGP (paper)")
    assert [line[at] for line in lines] == ["313.07", "705.03", "724.83"]
    assert [line[at + 2] for line in lines] == ["pass", "MISS", "MISS"]
    passed = {bar["what"]: bar["passed"] for bar in table2.list_bars(rows)}
    assert passed["MNIST, 5, test log likelihood"]
    assert passed["MNIST, 10-50 is better than 5"]
    assert not passed["MNIST, 5-20-50 is better than 10-50"]


def test_a_run_that_was_interrupted_goes_on_to_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("--steps", "8", "--output", "whole") == 0
    looks = iter([False, False, True])

    class Impatient(StopRequest):
        def __bool__(self) -> bool:
            if self.signal == 0 and next(looks, False):
                self.signal = 2
            return self.signal != 0

    with monkeypatch.context() as patch:
        patch.setattr("lapgrad_bench.experiments.interruption.StopRequest", Impatient)
        assert command("--steps", "8", "--output", "parts") == 130
    assert not contents("parts")["complete"]
    assert max(row["step"] for row in contents("parts")["rows"]) == 4
    assert command("--steps", "8", "--output", "parts", "--resume") == 0
    one, other = (
        [{key: value for key, value in row.items() if key != "seconds"} for row in contents(folder)["rows"]]
        for folder in ("whole", "parts")
    )
    assert one == other
    # Finished: nothing is left to do, and further steps go on from there.
    assert command("--steps", "8", "--output", "parts", "--resume") == 0
    assert command("--steps", "10", "--output", "parts", "--resume") == 0
    assert contents("parts")["rows"][-1]["step"] == 10


def test_a_test_that_was_interrupted_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deep_run, "TEST_PART", 3)
    monkeypatch.setattr("lapgrad_bench.common.progress._PAUSE", 0.0)
    assert command("--steps", "4", "--output", "whole") == 0
    shown = capsys.readouterr().err
    assert "testing, 0 % of the images\n" in shown  # nothing is known yet of the time that is left
    assert "left\n" in shown
    assert "nan" not in shown
    assert " 0 s left" not in shown
    looks = 0
    of_the_model = DeepGP.log_likelihood

    def log_likelihood(*arguments: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return of_the_model(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DeepGP, "log_likelihood", log_likelihood)
        assert command("--steps", "4", "--output", "parts") == 130
    assert looks == 2  # not the rest of the images
    assert not any("test_ll" in row for row in contents("parts")["rows"])
    assert command("--steps", "4", "--output", "parts", "--resume") == 0
    assert contents("parts")["rows"][-1]["test_ll"] == contents("whole")["rows"][-1]["test_ll"]


def test_minutes_and_annealing() -> None:
    assert command("--minutes", "0.001", "--annealing", "2", "--test-every", "1e-9", "--output", "out") == 0
    rows = contents("out")["rows"]
    assert all(row["step"] > 2 for row in rows if "elbo" in row)
    assert any(row.get("samples") == 50 for row in rows)  # tests on the way


def test_other_units_are_a_constant() -> None:
    train = mnist.load_images("train")
    scaling = Scaling.of("standardised", train)
    values = scaling.apply(train, torch.float64, 0)
    assert abs(values.mean().item()) < 1e-12
    assert values.std(correction=0).item() == pytest.approx(1.0)
    assert torch.allclose(scaling.undo(values), train.double() / 255.0)
    # A density of y = (x - shift) / scale, as one of x.
    assert scaling.nats == pytest.approx(-784 * math.log((train / 255.0).std(correction=0).item()), rel=1e-5)
    noisy = Scaling.of("dequantised", train).apply(train, torch.float64, 0)
    assert ((noisy * 256.0).floor() == train).all()
    assert (noisy * 256.0 != train).any()


@pytest.mark.parametrize("preprocessing", mnist.PREPROCESSINGS)
def test_preprocessing(preprocessing: str) -> None:
    assert command("--steps", "2", "--preprocessing", preprocessing, "--output", "out") == 0
    assert {row["preprocessing"] for row in contents("out")["rows"]} == {preprocessing}


def test_what_is_there_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--steps", "2", "--output", "out") == 0
    assert command("--steps", "2", "--output", "out") == 1
    assert "--resume" in capsys.readouterr().err
    assert command("--steps", "4", "--output", "out", "--resume", "--lr", "0.1") == 1
    assert "was learned with lr 0.005" in capsys.readouterr().err
    checkpoint = Path("out/table2-2-3.checkpoint.pt")
    whole = checkpoint.read_bytes()
    content = torch.load(io.BytesIO(whole), weights_only=True)
    for damaged, message in (
        (b"nothing", "is not a checkpoint"),
        (whole[:-9], "truncated"),
        (whole[:999] + b"?" + whole[1000:], "the checksum does not match"),
    ):
        checkpoint.write_bytes(damaged)
        assert command("--steps", "4", "--output", "out", "--resume") == 1
        assert message in capsys.readouterr().err
    for name in content:
        write_archive(checkpoint, {key: value for key, value in content.items() if key != name})
        assert command("--steps", "4", "--output", "out", "--resume") == 1
        assert f"missing entry '{name}'" in capsys.readouterr().err


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert command("--data-dir", "elsewhere") == 1
    message = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz or mnist_train_images.idx3.gz" in message
    assert "http" in message


def test_no_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command("--device", "cuda") == 1
    assert "finds no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "cannot be unpacked"),
        (gzip.compress(b"something else altogether"), "does not begin like"),
        (gzip.compress(idx3(3)[:-1]), "cut short"),
        (gzip.compress(idx3(3).replace(b"\x00\x00\x00\x1c", b"\x00\x00\x00\x10", 1)), "16 x 28"),
        (gzip.compress(idx3(3))[:-20], "cannot be unpacked"),
    ],
    # Not by their content: gzip writes the time into it, and processes would not agree on names.
    ids=["no gzip", "something else", "cut short", "other sizes", "cut gzip"],
)
def test_corrupt_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mnist_train_images.idx3.gz").write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        mnist.load_images("train")


def test_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "train-images-idx3-ubyte").write_bytes(idx3(60))
    assert torch.equal(mnist.load_images("train", tmp_path / "unpacked"), mnist.load_images("train"))


@pytest.mark.parametrize("options", [["--arch", "5-"], ["--minutes", "0"], ["--samples", "x"]])
def test_bad_options(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "table2", *options])


def test_curves() -> None:
    rows = [{"arch": "5", "step": step, "seconds": 0.1 * step, "elbo": float(step)} for step in range(30)]
    rows.append({"arch": "5", "step": 30, "seconds": 3.0, "test_ll": 31.0, "test_ll_standard_error": None})
    figure = plots_table2.draw_figure(rows)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_ylim()[0] == 1.0
