"""Series as users have them: tensors, arrays, objects of pandas; at regular steps or at any times."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._arrays import conversion as _conversion
from lapgrad.models._arrays.conversion import Origin
from lapgrad.models._state_space.time_series import Series, pad_series
from lapgrad.models._storage.entries import TEXT, check_entries

_ADJACENT = 0.5
"""On a grid with steps left out, at least this part of the observations follows directly on another."""

_FREQUENCIES = (
    "YS",
    "YE",
    "QS",
    "QE",
    "MS",
    "ME",
    "W-SUN",
    "W-MON",
    "W-TUE",
    "W-WED",
    "W-THU",
    "W-FRI",
    "W-SAT",
    "B",
    "D",
    "h",
    "30min",
    "15min",
    "10min",
    "5min",
    "min",
    "s",
)
"""Frequencies of dates with gaps, from the longest step on."""


class SeriesInput(NamedTuple):
    """Series, and when they were observed.

    Attributes:
        series: The values as one tensor.
        origin: What they were read from; its index has the steps that were filled in.
        labels: Coordinates of the steps of a single series, (T,): an index of pandas or an array; None: 0, 1,
            2, ...
        gaps: (T,), the time from each step to the next, float64; the last one is the usual gap. None: steps
            are regular.
    """

    series: Series
    origin: Origin
    labels: Any
    gaps: Tensor | None


def read_series(who: str, y: Any, times: Any = None) -> SeriesInput:
    """Return series as tensors. Where steps of a regular grid are left out they are filled with NaN.

    Args:
        who: Name of the model, for messages.
        y: One series, an array of several, or a list of series.
        times: (T,), when a single series was observed: numbers or dates; None: the index of an object of
            pandas, else regular steps.

    Raises:
        ShapeError: times has another length.
        OptionError: times do not increase, or there are several series.
    """
    if not _conversion.is_arraylike(y) and isinstance(y, list | tuple) and not (y and np.isscalar(y[0])):
        if times is not None:
            raise _exceptions.OptionError(f"{who}: times are for a single series.")
        parts = [_conversion.read_array(who, part, f"y[{i}]") for i, part in enumerate(y)]
        kinds = {origin.kind for _, origin in parts}
        origin = Origin("tensor" if kinds <= {"tensor"} else "array")
        return SeriesInput(pad_series(who, [tensor for tensor, _ in parts]), origin, None, None)
    values, origin = _conversion.read_array(who, y, "y")
    labels = origin.index if times is None else times
    if labels is None or values.dim() > 2:
        if times is not None:
            raise _exceptions.OptionError(f"{who}: times are for a single series.")
        return SeriesInput(pad_series(who, values), origin, None, None)
    if len(labels) != len(values):
        raise _exceptions.ShapeError(
            f"{who}: times must have one entry for each of {len(values)} steps, got {len(labels)}."
        )
    values, labels, gaps = _find_steps(who, values, labels)
    kept = labels if hasattr(labels, "to_numpy") else None
    return SeriesInput(pad_series(who, values), Origin(origin.kind, kept, origin.columns), labels, gaps)


def get_index(labels: Any) -> Any:
    """Return the labels if they are an index of pandas, else None."""
    return labels if hasattr(labels, "to_numpy") else None


def continue_labels(labels: Any, steps: int, gaps: Tensor | None) -> Any:
    """Return the labels of the ``steps`` steps after the end; None if there are none."""
    if labels is None:
        return None
    if hasattr(labels, "to_numpy"):
        found = _conversion.extend_index(labels, steps)
        if found is not None:
            return found
        if getattr(labels.dtype, "kind", "") not in "iufM":
            return None
    array = _conversion.get_coordinates(labels)
    if array is None or len(array) == 0:
        return None
    if len(array) > 1:
        usual = np.median(np.diff(array))
    else:  # a single label: the step is one unit, such as a day
        usual = (array - array)[0] + np.asarray(1, dtype=(array - array).dtype)
    later = array[-1] + np.arange(1, steps + 1) * usual.astype(
        array.dtype if array.dtype.kind == "f" else usual.dtype
    )
    return type(labels)(later) if hasattr(labels, "to_numpy") and steps else later


def _find_steps(who: str, values: Tensor, labels: Any) -> tuple[Tensor, Any, Tensor | None]:
    """Return values and labels on a regular grid, or the gaps between irregular times."""
    pandas = sys.modules.get("pandas")
    if not len(labels):
        return values, labels, None
    if pandas is not None and isinstance(labels, pandas.PeriodIndex):
        grid = pandas.period_range(labels[0], labels[-1], freq=labels.freq)
        return (*_fill(values, labels, grid), None)
    if pandas is not None and isinstance(labels, pandas.DatetimeIndex):
        _check_order(who, np.diff(labels.asi8))
        if len(labels) < 3 or _conversion.find_frequency(labels) is not None:
            return values, labels, None
        for frequency in _FREQUENCIES:
            grid = pandas.date_range(labels[0], labels[-1], freq=frequency)
            if len(labels) > len(grid) or not labels.isin(grid).all():
                continue
            if _is_dense(np.diff(grid.get_indexer(labels))):
                return (*_fill(values, labels, grid), None)
        return values, labels, _scale_gaps(np.diff(labels.asi8).astype(np.float64))
    array = labels.to_numpy() if hasattr(labels, "to_numpy") else np.asarray(labels)
    if array.dtype.kind == "M":
        # Months and years differ in days, but a series of months or years alone is regular.
        for unit in ("datetime64[Y]", "datetime64[M]"):
            if (array.astype(unit) == array).all():
                array = array.astype(unit)
                labels = labels if hasattr(labels, "to_numpy") else array
                break
        numbers = array.astype(np.int64).astype(np.float64)
    elif array.dtype.kind in "iuf":
        numbers = array.astype(np.float64)
    elif hasattr(labels, "to_numpy"):
        return values, labels, None  # names of rows, which say nothing about time
    else:
        raise _exceptions.OptionError(f"{who}: times must be numbers or dates, got {array.dtype}.")
    steps = np.diff(numbers)
    _check_order(who, steps)
    if len(steps) == 0 or np.allclose(steps, steps[0], rtol=1e-9):
        return values, labels, None
    counts = steps / steps.min()
    if np.allclose(counts, np.round(counts), rtol=1e-6, atol=1e-6) and _is_dense(counts):
        places = np.concatenate(([0], np.round(counts).astype(np.int64).cumsum()))
        step = array[1:][steps.argmin()] - array[:-1][steps.argmin()]
        grid = array[0] + np.arange(places[-1] + 1) * step
        kept = type(labels)(grid) if hasattr(labels, "to_numpy") else grid
        return _spread(values, places, len(grid)), kept, None
    usual = float(np.median(steps)) if array.dtype.kind == "M" else 1.0
    return values, labels, _scale_gaps(steps, usual)


def _is_dense(counts: Any) -> bool:
    """Return whether most steps of a grid have an observation, given the gaps in steps of the grid."""
    return bool(np.mean(counts < 1.5) >= _ADJACENT)


def _scale_gaps(steps: Any, unit: float | None = None) -> Tensor:
    """Return the gaps in a unit (None: their median), and the usual gap after the last time."""
    unit = float(np.median(steps)) if unit is None else unit
    return torch.from_numpy(np.concatenate((steps, [np.median(steps)])) / unit)


def _fill(values: Tensor, labels: Any, grid: Any) -> tuple[Tensor, Any]:
    if len(labels) == len(grid):
        return values, grid if (grid == labels).all() else labels
    return _spread(values, np.asarray(grid.get_indexer(labels)), len(grid)), grid


def _spread(values: Tensor, places: Any, length: int) -> Tensor:
    filled = values.new_full((length, *values.shape[1:]), torch.nan)
    filled[torch.from_numpy(np.ascontiguousarray(places)).to(values.device)] = values
    return filled


def _check_order(who: str, steps: Any) -> None:
    if len(steps) and not (steps > 0).all():
        at = int((~(steps > 0)).argmax()) + 1
        raise _exceptions.OptionError(f"{who}: times must increase; the one at step {at} does not.")


def get_plot_coordinates(labels: Any, length: int, steps: int, gaps: Tensor | None) -> Any:
    """Return coordinates (length + steps,) of a time axis: labels as they continue, else 0, 1, 2, ..."""
    known = _conversion.get_coordinates(labels)
    later = _conversion.get_coordinates(continue_labels(labels, steps, gaps)) if steps else None
    if known is None or len(known) < length or (steps and later is None):
        return np.arange(length + steps)
    return known[:length] if later is None else np.concatenate((known[:length], later))


def describe_labels(origin: Origin, labels: Any) -> dict[str, Any]:
    """Return the entry of a file about the labels of a series; none for plain tensors."""
    if origin.kind == "tensor" and labels is None:
        return {}
    found: dict[str, Any] = {"kind": origin.kind}
    if origin.columns is not None and all(isinstance(name, str) for name in origin.columns):
        found["columns"] = list(origin.columns)
    array = _conversion.get_coordinates(labels)
    if array is not None and array.dtype.kind == "M":
        found["dates"] = [str(date) for date in array.astype("datetime64[ns]")]
        found["frequency"] = getattr(labels, "freqstr", None)
        found["periods"] = hasattr(labels, "to_timestamp")
    elif array is not None:
        found["numbers"] = array.tolist()
    return {"origin": found}


def restore_labels(config: dict[str, Any], origin: Origin, labels: Any) -> tuple[Origin, Any]:
    """Return origin and labels as described by ``describe_labels``; arrays, if pandas is not installed."""
    saved = config.get("origin")
    if saved is None:
        return origin, labels
    check_entries(saved, {"kind": TEXT}, "the origin of the series")
    kind, columns = saved["kind"], saved.get("columns")
    dates, numbers = saved.get("dates"), saved.get("numbers")
    if dates is None and numbers is None:
        return Origin("array" if kind == "frame" else kind, None, columns), labels
    array = np.array(dates, dtype="datetime64[ns]") if dates is not None else np.array(numbers)
    if kind != "frame":
        return Origin(kind, None, columns), array
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        return Origin("array", None, columns), array
    index = pandas.Index(array) if dates is None else pandas.DatetimeIndex(array)
    if dates is not None and saved.get("periods"):
        index = index.to_period(saved.get("frequency"))
    elif dates is not None and saved.get("frequency"):
        index = pandas.DatetimeIndex(array, freq=saved["frequency"])
    return Origin(kind, index, columns), index
