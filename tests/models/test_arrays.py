"""Every model takes arrays of NumPy and objects of pandas, and returns predictions of the same kind."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas_stand_in
import pytest
import torch

import lapgrad
from lapgrad import models
from lapgrad.models.likelihoods import Poisson

N, NEW = 24, 5
RANDOM = np.random.default_rng(0)
X, X_NEW = RANDOM.normal(size=(N, 2)), RANDOM.normal(size=(NEW, 2))
Y = np.sin(X[:, 0]) + 0.1 * RANDOM.normal(size=N)
COUNTS = RANDOM.integers(0, 5, size=N)
LABELS = np.where(Y > 0, "high", "low")

Make = Callable[[Any, Any], Any]

MODELS: dict[str, Make] = {
    "exact": lambda X, y: models.GPRegression(X, y),
    "sparse": lambda X, y: models.SparseGPRegression(X, y, inducing=6),
    "linear": lambda X, y: models.BayesianLinearRegression(X, y),
    "deep": lambda X, y: models.DeepGPRegression(X, y, inducing=6, generator=0),
    "variational": lambda X, y: models.VariationalGP(X, y, Poisson(), inducing=6, generator=0),
    "several outputs": lambda X, y: models.MultiOutputGPRegression(X, y),
}


@pytest.fixture(params=["stand-in", "pandas"])
def pandas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pandas itself, if it is installed, and a stand-in."""
    if request.param == "pandas":
        return pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pandas", pandas_stand_in)
    return pandas_stand_in


def get_targets(name: str) -> Any:
    return {"variational": COUNTS, "several outputs": np.stack((Y, -Y), 1)}.get(name, Y)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_give_what_tensors_give(name: str) -> None:
    y = get_targets(name)
    of_arrays = MODELS[name](X, y)
    of_tensors = MODELS[name](torch.from_numpy(X), torch.from_numpy(np.float64(y)))
    assert isinstance(of_tensors.predict(torch.from_numpy(X_NEW)).mean, torch.Tensor)
    assert isinstance(of_arrays.predict(torch.from_numpy(X_NEW)).mean, torch.Tensor), "the kind of X_new"
    for found, wanted in zip(
        of_arrays.predict(X_NEW), of_tensors.predict(torch.from_numpy(X_NEW)), strict=True
    ):
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, wanted.detach().numpy())
    for copied in (copy.deepcopy(of_arrays), pickle.loads(pickle.dumps(of_arrays))):
        np.testing.assert_array_equal(copied.predict(X_NEW).mean, of_arrays.predict(X_NEW).mean)
    assert isinstance(of_arrays.sample(X_NEW, 2, generator=0), np.ndarray)
    new = Y[:NEW] if np.ndim(y) == 1 else y[:NEW]
    value = of_arrays.log_prob(X_NEW, np.abs(new.round()) if name == "variational" else new)
    assert isinstance(value, np.ndarray)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_keep_the_index(name: str, pandas: Any, tmp_path: Path) -> None:
    y, dates = get_targets(name), np.datetime64("2020-01-01") + np.arange(N)
    index, later = pandas.Index(dates), pandas.Index(dates[-1] + np.arange(1, NEW + 1))
    inputs = pandas.DataFrame(X, index=index, columns=["a", "b"])
    new = pandas.DataFrame(X_NEW, index=later, columns=["a", "b"])
    columns = ["u", "v"]
    targets = (
        pandas.Series(y, index=index, name="flow")
        if y.ndim == 1
        else pandas.DataFrame(y, index=index, columns=columns)
    )
    model = MODELS[name](inputs, targets)
    mean = model.predict(new).mean
    assert list(mean.index) == list(later)
    assert mean.name == "flow" if y.ndim == 1 else list(mean.columns) == columns
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model").predict(new).mean
    assert (again.name == "flow") if y.ndim == 1 else (list(again.columns) == columns)
    np.testing.assert_array_equal(np.asarray(again.to_numpy(dtype=float)), mean.to_numpy(dtype=float))
    # Columns are taken by their names.
    turned = model.predict(new[["b", "a"]]).mean
    np.testing.assert_array_equal(turned.to_numpy(dtype=float), mean.to_numpy(dtype=float))
    others = pandas.DataFrame(X_NEW, index=later, columns=["a", "c"])
    with pytest.raises(lapgrad.OptionError, match=r"X_new must have the columns .* got \['a', 'c'\]"):
        model.predict(others)


def test_other_methods(pandas: Any) -> None:
    index = pandas.Index(np.arange(N))
    frame = pandas.DataFrame(X, index=index, columns=["a", "b"])
    model = models.GPRegression(frame, pandas.Series(Y, index=index, name="flow"))
    left_out = model.leave_one_out()
    assert list(left_out.mean.index) == list(index)
    covariance = model.predict(frame, full_cov=True).covariance
    assert list(covariance.columns) == list(index)
    model.add_data(X_NEW, Y[:NEW])
    assert len(model.X) == N + NEW
    tasks = models.MultiTaskBLR([(X, Y), (frame, pandas.Series(-Y, index=index))])
    assert list(tasks.predict(1, frame).mean.index) == list(index)
    assert isinstance(tasks.sample(0, X_NEW, 2, noise=True, generator=0), np.ndarray)
    assert models.BatchGPRegression(np.stack((X, X)), np.stack((Y, -Y))).predict(X_NEW).mean.shape == (2, NEW)


def test_figures_of_left_out_observations(pandas: Any) -> None:
    index = pandas.Index(np.arange(N))
    of_arrays = models.GPRegression(X, Y).leave_one_out()
    of_tensors = models.GPRegression(torch.from_numpy(X), torch.from_numpy(Y)).leave_one_out()
    labelled = models.GPRegression(pandas.DataFrame(X, index=index), pandas.Series(Y, index=index))
    for found in (of_arrays, labelled.leave_one_out()):
        assert found.rmse == pytest.approx(of_tensors.rmse)
        assert found.compute_coverage() == of_tensors.compute_coverage()


def test_rows_with_other_labels_are_refused(pandas: Any) -> None:
    numbers = np.arange(N)
    frame, turned = pandas.Index(numbers), pandas.Index(numbers[::-1].copy())
    dates = pandas.Index(np.datetime64("2020-01-01") + numbers)
    inputs = pandas.DataFrame(X, index=frame)
    with pytest.raises(lapgrad.OptionError, match="rows of X and y have different labels, at row 0 0 and 23"):
        models.GPRegression(inputs, pandas.Series(Y, index=turned))
    with pytest.raises(lapgrad.OptionError, match="different labels"):
        models.GPRegression(pandas.DataFrame(X, index=turned), pandas.Series(Y, index=dates))
    # The numbers of rows are no labels beside dates.
    model = models.GPRegression(inputs, pandas.Series(Y, index=dates))
    with pytest.raises(lapgrad.OptionError, match="add_data: the rows of X_new and y_new"):
        model.add_data(inputs, pandas.Series(Y, index=turned))


@pytest.mark.parametrize("missing", [np.nan, np.datetime64("NaT")])
def test_missing_labels_are_equal(missing: Any, pandas: Any) -> None:
    labels = np.arange(N).astype("datetime64[D]") if isinstance(missing, np.datetime64) else np.arange(0.5, N)
    labels[0] = missing
    index, other = pandas.Index(labels), pandas.Index(np.roll(labels, 1))
    model = models.GPRegression(pandas.DataFrame(X, index=index), pandas.Series(Y, index=index))
    with pytest.raises(lapgrad.OptionError, match="different labels"):
        model.add_data(pandas.DataFrame(X, index=index), pandas.Series(Y, index=other))


def test_lists_of_numbers() -> None:
    model = models.GPRegression(X.tolist(), Y.tolist())
    assert isinstance(model.predict(X_NEW.tolist()).mean, np.ndarray)
    np.testing.assert_array_equal(model.predict(X_NEW).mean, models.GPRegression(X, Y).predict(X_NEW).mean)
    with pytest.raises(lapgrad.DTypeError, match="X must hold real numbers"):
        models.GPRegression(["a", "b"], [1.0, 2.0])
    with pytest.raises(lapgrad.DTypeError, match="X must hold real numbers"):
        models.GPRegression([[1.0], [2.0, 3.0]], [1.0, 2.0])


def test_observations_of_a_linear_model_are_added_as_arrays() -> None:
    model = models.BayesianLinearRegression(X, Y)
    model.observe(X_NEW, Y[:NEW])
    assert len(model.X) == N + NEW
    assert "n=29, d=2" in repr(model)


def test_messages_show_the_shape_that_was_passed() -> None:
    with pytest.raises(lapgrad.ShapeError, match=r"2 columns like the training data, got shape \(5,\)"):
        models.GPRegression(X, Y).predict(np.zeros(5))


def test_labels_and_probabilities(pandas: Any) -> None:
    index = pandas.Index(np.arange(N))
    frame = pandas.DataFrame(X, index=index, columns=["a", "b"])
    model = models.GPClassification(frame, LABELS, inducing=6, generator=0)
    found = model.predict(frame)
    assert list(found.labels.index) == list(index)
    assert list(found.probabilities.columns) == ["high", "low"]
    assert list(model.predict_proba(frame).columns) == ["high", "low"]
    assert isinstance(model.predict(X).probabilities, np.ndarray)
    assert np.isfinite(np.asarray(model.log_prob(X, LABELS))).all()


def test_embeddings_keep_the_index(pandas: Any) -> None:
    index = pandas.Index(np.arange(N))
    frame = pandas.DataFrame(np.hstack((X, X)), index=index, columns=list("abcd"))
    model = models.DeepGP(frame, [2], inducing=4, hidden=(4,), generator=0)
    model.fit(frame, steps=2)
    assert list(model.embed(frame).index) == list(index)
    assert list(model.reconstruct(frame).columns) == list("abcd")


@pytest.mark.parametrize("name", ["exact", "sparse", "linear", "deep", "variational"])
def test_dates_are_inputs_and_plots_have_them(name: str, pandas: Any, tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    index = pandas.Index(np.datetime64("2020-01-01") + 7 * np.arange(N), name="week")
    model = MODELS[name](index, pandas.Series(get_targets(name), index=index, name="flow"))
    assert model.X[:2, 0].tolist() == [18262.0, 18269.0], "days since 1970"
    model.save(tmp_path / "model")
    for one in (model, type(model).load(tmp_path / "model")):
        axes = one.plot()
        axes.figure.canvas.draw()
        assert any("2020" in tick.get_text() for tick in axes.get_xticklabels())
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("week", "flow")
    pyplot.close("all")
    later = pandas.Index(np.datetime64("2020-07-01") + np.arange(3))
    assert list(model.predict(later).mean.index) == list(later)


def test_dtypes_follow_the_data() -> None:
    single = models.GPRegression(X.astype(np.float32), Y.astype(np.float32))
    assert single.X.dtype == torch.float32
    assert single.predict(X_NEW).mean.dtype == np.float32
    assert models.GPRegression(X.astype(np.float32), Y).X.dtype == torch.float64
    assert models.GPRegression(torch.from_numpy(X).float(), Y).y.dtype == torch.float32
    whole = models.BayesianLinearRegression(np.arange(6), np.arange(6) ** 2)
    assert whole.X.dtype == torch.float64
