"""The demonstration: both criteria agree, the model learns, and the command runs from end to end."""

import json

import pytest
import torch

from lapgrad import cli
from lapgrad._torch import lu as torch_lu
from lapgrad.demo import carbon, examples
from lapgrad.demo.model import PARAMETERS, learn, make_model, predict, predict_season, to_inputs
from lapgrad.demo.notebook import convert_to_notebook
from lapgrad.demo.timing import compare_with_torch, compute_loss_with_torch, make_random_model


@pytest.fixture
def train():
    whole, _ = carbon.load()
    return carbon.Series(whole.years[-60:], whole.ppm[-60:])


@pytest.mark.parametrize("random", [False, True])
def test_the_loss_of_torch_is_that_of_the_model(train, random):
    model = make_random_model(20, torch.float64, seed=0) if random else make_model(train)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ours, theirs = (
        (value, *torch.autograd.grad(value, learned))
        for value in (model.loss(), compute_loss_with_torch(model))
    )
    torch.testing.assert_close(ours, theirs)


def test_the_season_is_a_part_of_the_mean(train):
    """The kernels are a sum, so the mean is a constant and one part for each kernel."""
    model, years = make_model(train), torch.tensor([1987.3, 1988.5, 1990.0], dtype=torch.float64)
    trend, season, weather = model.kernel.kernels()
    with torch.no_grad():
        A = model.kernel(model.X) + model.noise_var * torch.eye(len(model.X), dtype=torch.float64)
        weights = torch_lu.solve(A, model.y - model.constant)
        inputs = to_inputs(years, torch.float64)
        parts = [(kernel(inputs, model.X) @ weights)[:, 0] for kernel in (trend, season, weather)]
        mean, _ = predict(model, years)
    torch.testing.assert_close(predict_season(model, years), parts[1])
    torch.testing.assert_close(mean, sum(parts) + model.constant.detach())


def test_every_printed_parameter_is_learned_and_has_its_unit(train):
    model = make_model(train)
    raw = {name for name, value in model.named_parameters() if value.requires_grad}
    printed = {parameter.name for parameter in PARAMETERS}
    assert {name.replace("raw_", "") for name in raw} == printed
    amplitude = next(parameter for parameter in PARAMETERS if parameter.text == "trend: amplitude")
    assert amplitude.read(model) == pytest.approx((10.0 * train.ppm.var().item()) ** 0.5)


def test_learning_lowers_the_criterion(train):
    values = learn(make_model(train), steps=20)
    assert values[-1] < values[0] - 1


def test_the_forecast_beats_forecasts_without_a_model():
    train, test = carbon.load()
    model = make_model(train)
    learn(model, steps=150)
    mean, deviation = predict(model, test.years)
    error = (mean - test.ppm).square().mean().sqrt()
    without_model = carbon.repeat_last_year_with_drift(train, len(test))
    assert error < (without_model - test.ppm).square().mean().sqrt()
    covered = ((mean - test.ppm).abs() < 1.96 * deviation).double().mean()
    assert covered > 0.85


def test_timing_compares_both_sides():
    comparison = compare_with_torch("random", make_random_model(16, torch.float64, seed=0), seconds=0.01)
    assert comparison.lapgrad > 0
    assert comparison.torch > 0
    assert comparison.speedup == comparison.torch / comparison.lapgrad


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_command_prints_a_summary_and_draws(dtype, tmp_path, capsys):
    figure = tmp_path / "new" / "demo.png"
    threads = torch.get_num_threads()
    options = [
        "--output",
        str(figure),
        "--steps",
        "20",
        "--dtype",
        dtype,
        "--large",
        "64",
        "--threads",
        str(threads),
    ]
    assert cli.main(["demo", *options]) == 0
    printed = capsys.readouterr().out
    for text in (
        "20/20",
        "trend: length",
        "RMSE",
        "mean log likelihood",
        "this model, n = 348",
        "n = 64",
        "faster",
    ):
        assert text in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_command_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["demo"]) == 1
    assert "pip install 'lapgrad[demo]'" in capsys.readouterr().err


def test_examples_are_listed_and_found_by_their_short_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["demo", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "blr" and "Bayesian linear regression" in line for line in lines)
    assert sum(not line.startswith(" ") for line in lines) == len(examples.find_examples())
    assert max(map(len, lines)) <= 80
    assert examples.find_example("blr") == examples.find_example("bayesian_linear_regression")


def test_every_short_name_has_its_example():
    assert set(examples.SHORT_NAMES.values()) <= {example.name for example in examples.find_examples()}


def test_an_example_that_is_not_there(capsys):
    assert cli.main(["demo", "nothing"]) == 2
    assert "there is no example 'nothing'. There are: " in capsys.readouterr().err


def test_a_notebook_that_cannot_be_written_is_named(tmp_path, capsys):
    assert cli.main(["demo", "gp", "--notebook", str(tmp_path / "none" / "gp.ipynb")]) == 1
    assert "cannot be written: No such file" in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_the_data_is_named(tmp_path, capsys):
    arguments = ["demo", "gp", "--quick", "--data-dir", str(tmp_path / "none"), "--output", str(tmp_path)]
    assert cli.main(arguments) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "co2_monthly.csv does not exist" in said
    assert "--data-dir" in said


def test_examples_of_an_installed_package_come_first(tmp_path, monkeypatch):
    package = tmp_path / "site" / "lapgrad"
    for place in (package / "examples", tmp_path / "examples"):
        place.mkdir(parents=True)
        (place / "one.py").write_text('"""Title."""\n')
    monkeypatch.setattr(examples, "PACKAGE", package)
    (found,) = examples.find_examples()
    assert found.path == package / "examples" / "one.py"
    assert found.title == "Title."
    (package / "examples" / "one.py").unlink()
    assert examples.find_folder() == tmp_path / "examples"


def test_a_script_without_cells_is_one_cell_of_code():
    cells = json.loads(convert_to_notebook("x = 1\n", []))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells[1:]] == [("code", "x = 1")]
