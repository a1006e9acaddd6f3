"""The interface of all models: summaries, results of one line, and errors for unknown attributes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import stored_models
import torch
from torch import Tensor

from lapgrad.models import FitResult, GPRegression, Model
from lapgrad.models.kernels import RBF


@pytest.mark.parametrize(
    "name", [name for name, make in stored_models.MODELS.items() if isinstance(make(), Model)]
)
def test_summaries_name_all_hyperparameters(name: str) -> None:
    model = stored_models.MODELS[name]()
    assert isinstance(model, Model)
    text = str(model.summary())
    assert text.startswith(type(model).__name__)
    for path in model.hyperparameters():
        assert path in text


def test_summary_shows_values_priors_and_bounds() -> None:
    model = GPRegression(stored_models.X, stored_models.Y_ONE, RBF([0.5, 2.0], 3.0), noise_var=0.25)
    model.fix("kernel.variance")
    model.set_bounds("noise_var", 0.01, 10.0)
    model.set_prior("kernel.lengthscale", torch.distributions.LogNormal(0.0, 1.0))
    lines = {line.split()[0]: line for line in model.summary().splitlines() if line.strip()}
    assert "[0.5, 2]" in lines["kernel.lengthscale"]
    assert "LogNormal" in lines["kernel.lengthscale"]
    assert lines["kernel.variance"].split()[1:] == ["3", "fixed"]
    assert "(0.01, 10)" in lines["noise_var"]
    assert repr(model.summary()) == str(model.summary())


def test_a_result_prints_one_line() -> None:
    result = FitResult(-12.3456789, [1.0] * 500, 40, True, "it was good", 1.25)
    assert repr(result) == "FitResult(loss -12.3457, converged after 40 steps in 1.2 s: it was good)"
    assert "not converged" in repr(FitResult(0.0, [], 1, False, "x", 0.0))


@pytest.mark.parametrize("name", stored_models.MODELS)
def test_misspelt_attributes_are_errors(name: str) -> None:
    model = stored_models.MODELS[name]()
    with pytest.raises(AttributeError, match="has no attribute 'noise_varr'"):
        model.noise_varr = 0.1
    copies = [copy.deepcopy(model)]
    if "network" not in name and "emitted" not in name:
        copies.append(pickle.loads(pickle.dumps(model)))
    for other in copies:
        with pytest.raises(AttributeError):
            other.something_else = 1


def test_misspelt_attributes_of_kernels_get_a_hint() -> None:
    kernel = RBF()
    with pytest.raises(
        AttributeError, match=r"no attribute 'lenghtscale' that could be set\. Did you mean 'leng"
    ):
        kernel.lenghtscale = 0.3
    with pytest.raises(AttributeError):
        _ = kernel.lenghtscale
    kernel._mine = 3
    other = RBF(2.0)
    kernel.lengthscale = other.lengthscale
    assert kernel.lengthscale.item() == pytest.approx(2.0)
    assert len(list(kernel.parameters())) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X, y: GPRegression(X, y, noise=0.1),
            r"GPRegression\(\) .* 'noise'. Did you mean 'noise_var'\?",
        ),
        (
            lambda X, y: GPRegression(X, y).fit(step=3),
            r"GPRegression.fit\(\) .* 'step'. Did you mean 'steps'\?",
        ),
        (
            lambda X, y: GPRegression(X, y).predict(X, return_std=True),
            r"GPRegression.predict\(\) .*'return_std'.$",
        ),
    ],
)
def test_misspelt_arguments_are_named(call: Callable[[Tensor, Tensor], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(torch.zeros(3, 1, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64))
