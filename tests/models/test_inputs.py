"""NumPy arrays and objects of pandas in and out of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lapgrad
from lapgrad.demo.series import load_airline_passengers
from lapgrad.models import LinearGaussianSSM
from lapgrad.models._arrays.conversion import Origin, get_coordinates, is_frame, read_array, write_array
from lapgrad.models._state_space.reading import continue_labels
from lapgrad.models.components import LocalLevel


class Frame:
    """What the library uses of a Series of pandas."""

    def __init__(self, values: Any, index: Any) -> None:
        self.values, self.index, self.name, self.iloc = np.asarray(values), index, "flow", None
        self.dtype = self.values.dtype

    def to_numpy(self, dtype: Any, na_value: Any) -> Any:
        return self.values.astype(dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.arange(3), torch.float64),
        (np.arange(3, dtype=np.float32), torch.float32),
        (np.arange(6, dtype=">f8")[::-2], torch.float64),
        ([1, 2, 3], torch.float64),
        ([True, False, True], torch.float64),
        (np.float16([1, 2, 3]), torch.float64),
    ],
)
def test_arrays_become_floats(value: Any, dtype: torch.dtype) -> None:
    tensor, origin = read_array("who", value, "y")
    assert tensor.dtype == dtype
    assert origin.kind == "array"
    assert tensor.tolist() == [float(number) for number in value]
    assert isinstance(write_array(tensor, origin), np.ndarray)


def test_tensors_pass_through() -> None:
    tensor = torch.arange(3)
    found, origin = read_array("who", tensor, "y")
    assert found is tensor
    assert write_array(tensor, origin) is tensor


def test_frames_are_recognised_by_what_they_can() -> None:
    frame = Frame(np.array([1, 2], dtype=np.float32), [10, 20])
    assert is_frame(frame)
    tensor, origin = read_array("who", frame, "y")
    assert tensor.dtype == torch.float32
    assert origin == Origin("frame", [10, 20], ["flow"])
    assert not is_frame(np.ones(3))


@pytest.mark.parametrize("value", [["a", "b"], np.array([1j]), [[1.0], [1.0, 2.0]], object()])
def test_what_holds_no_numbers_is_named(value: Any) -> None:
    with pytest.raises(lapgrad.DTypeError, match="who: y must hold real numbers"):
        read_array("who", value, "y")


def test_results_are_of_the_kind_of_the_data() -> None:
    y = np.log(load_airline_passengers()[1])[:40]
    arrays = LinearGaussianSSM(y, LocalLevel(0.01), noise_var=0.1)
    tensors = LinearGaussianSSM(torch.from_numpy(y), LocalLevel(0.01), noise_var=0.1)
    for of_arrays, of_tensors in (
        (arrays.forecast(3).mean, tensors.forecast(3).mean),
        (arrays.forecast(3).variance, tensors.forecast(3).variance),
        (arrays.residuals(), tensors.residuals()),
        (arrays.decompose()[0].mean, tensors.decompose()[0].mean),
        (arrays.sample(2, 3, generator=0), tensors.sample(2, 3, generator=0)),
    ):
        assert isinstance(of_arrays, np.ndarray)
        assert isinstance(of_tensors, torch.Tensor)
        np.testing.assert_array_equal(of_arrays, of_tensors.numpy())
    several = LinearGaussianSSM([y, y[:20].tolist()], LocalLevel(0.01), noise_var=0.1)
    assert several.forecast(2).mean.shape == (2, 2)


def test_dates_of_arrays(tmp_path: Path) -> None:
    months, passengers = load_airline_passengers()
    for dates in (months, months.astype("datetime64[D]"), months.astype("datetime64[ns]")):
        model = LinearGaussianSSM(passengers, LocalLevel(1.0), times=dates)
        assert model.gaps is None, "months are regular steps"
        later = get_coordinates(continue_labels(model.labels, 2, None))
        assert [str(date)[:7] for date in later] == ["1961-01", "1961-02"]
    model.save(tmp_path / "model")
    again = LinearGaussianSSM.load(tmp_path / "model")
    assert str(again.labels[-1])[:7] == "1960-12"
    days = np.array(["2020-01-01", "2020-01-05", "2020-02-11", "2020-02-17"], dtype="datetime64[D]")
    assert LinearGaussianSSM(passengers[:4], LocalLevel(1.0), times=days).gaps is not None


def test_plots_have_dates() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    months, passengers = load_airline_passengers()
    axes = LinearGaussianSSM(passengers, LocalLevel(1.0), times=months).plot(12)
    last = pytest.importorskip("matplotlib.dates").num2date(axes.lines[-1].get_xdata(orig=False)[-1])
    assert (last.year, last.month) == (1961, 12)
    pyplot.close("all")


def make_series() -> Any:
    pandas = pytest.importorskip("pandas")
    months, passengers = load_airline_passengers()
    index = pandas.DatetimeIndex(months.astype("datetime64[ns]"))
    return pandas, pandas.Series(np.log(passengers), index=index, name="passengers")


def test_forecasts_extend_the_index(tmp_path: Path) -> None:
    pandas, series = make_series()
    model = LinearGaussianSSM(series, LocalLevel(0.01), noise_var=0.1)
    mean = model.forecast(2).mean
    assert isinstance(mean, pandas.Series)
    assert list(mean.index) == [pandas.Timestamp("1961-01-01"), pandas.Timestamp("1961-02-01")]
    assert mean.name == "passengers"
    assert model.residuals().index.equals(series.index)
    model.save(tmp_path / "model")
    assert LinearGaussianSSM.load(tmp_path / "model").forecast(2).mean.equals(mean)
    periods = LinearGaussianSSM(series.to_period("M"), LocalLevel(0.01), noise_var=0.1).forecast(2).mean
    assert str(periods.index[0]) == "1961-01"
    numbered = (
        LinearGaussianSSM(series.reset_index(drop=True), LocalLevel(0.01), noise_var=0.1).forecast(2).mean
    )
    assert list(numbered.index) == [144, 145]
    np.testing.assert_array_equal(mean, numbered)


def test_months_that_are_left_out_are_missing() -> None:
    _, series = make_series()
    model = LinearGaussianSSM(series.drop(series.index[[3, 4, 30]]), LocalLevel(0.01), noise_var=0.1)
    assert model.y.shape == (1, 144, 1)
    assert int(model.y.isnan().sum()) == 3
    assert len(model.residuals()) == 144
