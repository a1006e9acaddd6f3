"""Arrays of NumPy and objects of pandas as tensors, and back; pandas is no dependency.

    tensor, origin = read_array(who, value, name)      tensors, arrays, Series, DataFrames, lists of numbers
    value = write_array(tensor, origin)                the same kind of object, with the index of the origin
    value = write_array(tensor, origin, index)         or with another index, such as that of a forecast

``Origin`` remembers what kind of object it was, its index and its column names; ``extend_index`` continues an
index after its end, and ``get_coordinates`` returns what matplotlib draws an axis by. A tensor passes through
as it is: its dtype, device and graph are kept. Dates become days since 1970, the numbers that matplotlib has
for them.

Objects of pandas are recognised by their attributes. pandas itself is only looked up among the modules that
the program has already imported, which it has if it holds one of its objects.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapgrad import _exceptions


class Origin(NamedTuple):
    """What a tensor was read from.

    Attributes:
        kind: "tensor", "array" or "frame" (of pandas).
        index: The index of a Series or DataFrame, else None.
        columns: The names of the columns of a DataFrame, the name of a Series in a list, else None.
        has_dates: Whether all its columns are dates.
    """

    kind: str = "tensor"
    index: Any = None
    columns: list[Any] | None = None
    has_dates: bool = False


TENSOR = Origin()


def read_array(who: str, value: Any, name: str) -> tuple[Tensor, Origin]:
    """Return a tensor with the numbers of ``value``, and what it was.

    Args:
        who: Name of the model or function, for messages.
        value: A tensor; an array of NumPy, or what has ``__array__``; a Series, DataFrame or index of pandas;
            nested lists of numbers. Integers, booleans, half precision and dates become float64 (tensors are
            left as they are); float32 and float64 are kept. Missing values become NaN.
        name: Name of the argument, for messages.

    Raises:
        DTypeError: These are no real numbers.
    """
    if isinstance(value, Tensor):
        return value, TENSOR
    origin = _describe(value)
    try:
        array = _read_frame(value) if origin.kind == "frame" else np.asarray(value)
        if array.dtype.kind == "M":
            array, origin = _count_days(array), Origin(*origin[:3], has_dates=True)
        if array.dtype not in (np.float32, np.float64):
            array = _convert_numbers(array)
    except (TypeError, ValueError, RuntimeError) as error:  # the last: lists of tensors with gradients
        raise _exceptions.DTypeError(
            f"{who}: {name} must hold real numbers: a tensor, an array of NumPy, an object of pandas; got "
            f"{type(value).__name__} ({error})."
        ) from None
    # A copy: torch tensors cannot be read-only, nor have strides that are negative.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C")), origin


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a Series or a DataFrame of pandas."""
    return hasattr(value, "to_numpy") and hasattr(value, "index") and hasattr(value, "iloc")


def is_index(value: Any) -> bool:
    """Return whether ``value`` is an index of pandas, such as dates."""
    return hasattr(value, "to_numpy") and hasattr(value, "get_indexer")


def is_arraylike(value: Any) -> bool:
    """Return whether ``value`` is one array (a tensor, of NumPy, or of pandas), not a list of several."""
    return isinstance(value, Tensor | np.ndarray) or is_frame(value) or is_index(value)


def write_array(tensor: Tensor, origin: Origin, index: Any = None) -> Any:
    """Return the numbers of a tensor as an object of the kind of ``origin``.

    Args:
        tensor: (n,) or (n, k) to get an index; of other shapes an array is returned where pandas has no
            object.
        origin: What the data of the model were read from.
        index: The index of the rows; None: that of the origin, if its length fits.
    """
    return tensor if origin.kind == "tensor" else label_rows(tensor.detach().cpu().numpy(), origin, index)


def label_rows(array: Any, origin: Origin, index: Any = None) -> Any:
    """Return an array of NumPy as an object of the kind of ``origin``: see ``write_array``."""
    index = origin.index if index is None else index
    pandas = sys.modules.get("pandas")
    if (
        origin.kind == "array"
        or pandas is None
        or index is None
        or len(index) != len(array)
        or array.ndim > 2
    ):
        return array
    if array.ndim == 1:
        name = origin.columns[0] if origin.columns and len(origin.columns) == 1 else None
        return pandas.Series(array, index=index, name=name)
    fits = origin.columns is not None and len(origin.columns) == array.shape[1]
    return pandas.DataFrame(array, index=index, columns=origin.columns if fits else None)


def extend_index(index: Any, steps: int) -> Any:
    """Return the ``steps`` labels that continue an index of pandas; None if the index has no regular step.

    Dates continue by their frequency, which is inferred where it is not set; integers by their step.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or index is None:
        return None
    if isinstance(index, pandas.PeriodIndex):
        return pandas.period_range(index[-1] + 1, periods=steps, freq=index.freq)
    if isinstance(index, pandas.DatetimeIndex):
        frequency = find_frequency(index)
        if frequency is None:
            return None
        return pandas.date_range(index[-1], periods=steps + 1, freq=frequency)[1:]
    if len(index) and getattr(index.dtype, "kind", "") in "iu":
        gaps = np.diff(index.to_numpy())
        if len(gaps) == 0 or (gaps == gaps[0]).all():
            step = int(gaps[0]) if len(gaps) else 1
            first = int(index[-1]) + step
            return pandas.RangeIndex(first, first + step * steps, step, name=index.name)
    return None


def find_frequency(index: Any) -> Any:
    """Return the frequency of a DatetimeIndex of pandas, inferred if it is not set; None: there is none."""
    if index.freq is not None or len(index) < 3:
        return index.freq
    with warnings.catch_warnings():
        # pandas announces that the result will have another type; both are accepted here.
        warnings.simplefilter("ignore")
        return sys.modules["pandas"].infer_freq(index)


def get_coordinates(index: Any) -> Any:
    """Return an index as an array that matplotlib can draw, dates or numbers; None: it is neither."""
    if index is None:
        return None
    if hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    array = index.to_numpy() if hasattr(index, "to_numpy") else np.asarray(index)
    return array if array.dtype.kind in "iufM" else None


def _describe(value: Any) -> Origin:
    if is_index(value):
        return Origin("frame", value, [value.name])
    if not is_frame(value):
        return Origin("array")
    columns = list(value.columns) if hasattr(value, "columns") else [getattr(value, "name", None)]
    return Origin("frame", value.index, columns)


def _read_frame(value: Any) -> Any:
    """Return the numbers, or dates, of an object of pandas."""
    if is_index(value):
        return _read_dates(value) if _holds_dates(value) else np.asarray(value)
    if not hasattr(value, "dtypes") or not hasattr(value, "columns"):
        if _holds_dates(value):
            return _read_dates(sys.modules["pandas"].Index(value))
        # Columns may have types of their own with missing values that are no NaN.
        return value.to_numpy(dtype=_choose_dtype(value), na_value=np.nan)
    dates = [_holds_dates(value.iloc[:, i]) for i in range(value.shape[1])]
    if not any(dates):
        return value.to_numpy(dtype=_choose_dtype(value), na_value=np.nan)
    columns = [_read_frame(value.iloc[:, i]) for i in range(value.shape[1])]
    if not all(dates):
        columns = [_count_days(column) if column.dtype.kind == "M" else column for column in columns]
    return np.stack(columns, 1)


def _holds_dates(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).startswith(("datetime64", "period"))


def _read_dates(index: Any) -> Any:
    """Return an index of dates or periods as dates of NumPy, in universal time."""
    if hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    if getattr(index, "tz", None) is not None:
        index = index.tz_convert(None)
    return np.asarray(index, dtype="datetime64[ns]")


def _count_days(dates: Any) -> Any:
    """Return dates as days since 1970; those that are missing as NaN."""
    days = (dates - np.datetime64(0, "s")) / np.timedelta64(1, "D")
    return days.astype(np.float64)


def _choose_dtype(value: Any) -> Any:
    """Return float32 if all columns have it, else float64."""
    types = [value.dtype] if hasattr(value, "dtype") else list(value.dtypes)
    return np.float32 if types and all(str(one) == "float32" for one in types) else np.float64


def _convert_numbers(array: Any) -> Any:
    if array.dtype.kind not in "biufO":
        raise TypeError(f"its dtype is {array.dtype}")
    return array.astype(np.float64)
