"""The demonstration: its model is right, it learns, and the command runs from end to end."""

import json

import pytest
import torch

from lapgrad import cli
from lapgrad._torch import lu as torch_lu
from lapgrad.demo import carbon, examples
from lapgrad.demo.gp import LAPGRAD, PARAMETERS, TORCH, CarbonModel, criterion, learn
from lapgrad.demo.notebook import notebook
from lapgrad.demo.timing import compare_synthetic


@pytest.fixture
def train():
    whole, _ = carbon.load()
    return carbon.Series(whole.years[-60:], whole.ppm[-60:])


def test_criterion_is_the_density_of_the_normal_distribution():
    X = torch.randn(7, 7, dtype=torch.float64)
    A, y = X @ X.mT + torch.eye(7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(torch.zeros_like(y), A)
    torch.testing.assert_close(criterion(A, y), -density.log_prob(y))


def test_both_algebras_give_the_same_value_and_gradient(train):
    model = CarbonModel(train)
    ours, theirs = (
        (v := model.value(a), *torch.autograd.grad(v, model.parameters())) for a in (LAPGRAD, TORCH)
    )
    torch.testing.assert_close(ours, theirs)


def test_prediction_is_the_conditional_normal_distribution(train):
    # mean = kᵀ A⁻¹ y, variance = k(x, x) + noise − kᵀ A⁻¹ k, written with a dense inverse.
    model, years = CarbonModel(train), torch.tensor([1988.5, 1990.0], dtype=torch.float64)
    with torch.no_grad():
        inverse = torch_lu.inv(model._covariance_of_train())
        k = model._kernel(*model._distances_to_train(years))
        prior = sum(p.start for name, p in PARAMETERS.items() if name.endswith("variance"))
        mean = k.mT @ inverse @ model.y * model.scale + model.mean
        deviation = (prior - (k * (inverse @ k)).sum(0)).sqrt() * model.scale
    torch.testing.assert_close(model.predict(years), (mean, deviation))


def test_learning_lowers_the_criterion(train):
    values = learn(CarbonModel(train), steps=20)
    assert values[-1] < values[0] - 1


def test_the_forecast_beats_forecasts_without_a_model():
    train, test = carbon.load()
    model = CarbonModel(train)
    learn(model, steps=150)
    mean, deviation = model.predict(test.years)
    error = (mean - test.ppm).square().mean().sqrt()
    without_model = carbon.last_year_with_drift(train, len(test))
    assert error < (without_model - test.ppm).square().mean().sqrt()
    covered = ((mean - test.ppm).abs() < 1.96 * deviation).double().mean()
    assert covered > 0.85


def test_timing_compares_both_sides():
    comparison = compare_synthetic(16, torch.float64, seed=0, seconds=0.01)
    assert comparison.ours > 0
    assert comparison.peer > 0


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


def test_examples_are_listed_and_found_by_their_short_names(capsys):
    assert cli.main(["demo", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "blr" and "Bayesian linear regression" in line for line in lines)
    assert len(lines) == len(examples.found())
    assert examples.named("blr") == examples.named("bayesian_linear_regression")


def test_every_short_name_has_its_example():
    assert set(examples.SHORT_NAMES.values()) <= {example.name for example in examples.found()}


def test_an_example_that_is_not_there(capsys):
    assert cli.main(["demo", "nothing"]) == 2
    assert "there is no example 'nothing'. There are: " in capsys.readouterr().err


def test_examples_of_an_installed_package_come_first(tmp_path, monkeypatch):
    package = tmp_path / "site" / "lapgrad"
    for place in (package / "examples", tmp_path / "examples"):
        place.mkdir(parents=True)
        (place / "one.py").write_text('"""Title."""\n')
    monkeypatch.setattr(examples, "PACKAGE", package)
    (found,) = examples.found()
    assert found.path == package / "examples" / "one.py"
    assert found.title == "Title."
    (package / "examples" / "one.py").unlink()
    assert examples.folder() == tmp_path / "examples"


def test_a_script_without_cells_is_one_cell_of_code():
    cells = json.loads(notebook("x = 1\n", []))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells[1:]] == [("code", "x = 1")]
