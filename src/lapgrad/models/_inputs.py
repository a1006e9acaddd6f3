"""NumPy arrays and pandas objects as input and output of models, without a dependency on pandas.

Three functions are all that a model needs:

    tensor, origin = read_array(who, value, name)      tensors, arrays, Series and DataFrames, lists of
    numbers
    value = write_array(tensor, origin)                the same kind of object, with the index of the origin
    value = write_array(tensor, origin, index)         or with another index, such as that of a forecast

``Origin`` remembers what kind of object it was, its index and its column names; ``extend_index`` continues an
index after its end, and ``get_coordinates`` returns what matplotlib draws an axis by. A tensor passes through
as it is: its dtype, device and graph are kept.

Objects of pandas are recognised by their attributes. pandas itself is only looked up among the modules that
the
program has already imported, which it has if it holds one of its objects.
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
    """

    kind: str = "tensor"
    index: Any = None
    columns: list[Any] | None = None


TENSOR = Origin()


def read_array(who: str, value: Any, name: str) -> tuple[Tensor, Origin]:
    """Return a tensor with the numbers of ``value``, and what it was.

    Args:
        who: Name of the model or function, for messages.
        value: A tensor; an array of NumPy, or what has ``__array__``; a Series or DataFrame of pandas; nested
            lists of numbers. Integers, booleans and half precision become float64 (tensors are left as they
            are); float32 and float64 are kept. Missing values become NaN.
        name: Name of the argument, for messages.

    Raises:
        DTypeError: These are no real numbers.
    """
    if isinstance(value, Tensor):
        return value, TENSOR
    origin = _describe(value)
    try:
        # In pandas columns may have types of their own with missing values that are no NaN.
        array = (
            value.to_numpy(dtype=_choose_dtype(value), na_value=np.nan)
            if origin.kind == "frame"
            else np.asarray(value)
        )
        if array.dtype not in (np.float32, np.float64):
            array = _convert_numbers(array)
    except (TypeError, ValueError) as error:
        raise _exceptions.DTypeError(
            f"{who}: {name} must hold real numbers: a tensor, an array of NumPy, an object of pandas; got "
            f"{type(value).__name__} ({error})."
        ) from None
    # A copy: torch tensors cannot be read-only, nor have strides that are negative.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C")), origin


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a Series or a DataFrame of pandas."""
    return hasattr(value, "to_numpy") and hasattr(value, "index") and hasattr(value, "iloc")


def is_arraylike(value: Any) -> bool:
    """Return whether ``value`` is one array, and not a list of several: a tensor, an array, or of pandas."""
    return isinstance(value, Tensor | np.ndarray) or is_frame(value)


def write_array(tensor: Tensor, origin: Origin, index: Any = None) -> Any:
    """Return the numbers of a tensor as an object of the kind of ``origin``.

    Args:
        tensor: (n,) or (n, k) to get an index; of other shapes an array is returned where pandas has no
            object.
        origin: What the data of the model were read from.
        index: The index of the rows; None: that of the origin, if its length fits.
    """
    if origin.kind == "tensor":
        return tensor
    array = tensor.detach().cpu().numpy()
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
        return pandas.Series(array, index=index, name=origin.columns[0] if origin.columns else None)
    fits = origin.columns is not None and len(origin.columns) == array.shape[1]
    return pandas.DataFrame(array, index=index, columns=origin.columns if fits else None)


def extend_index(index: Any, steps: int) -> Any:
    """Return the ``steps`` labels after the end of an index of pandas; None: it does not say which these are.

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
    if not is_frame(value):
        return Origin("array")
    columns = list(value.columns) if hasattr(value, "columns") else [getattr(value, "name", None)]
    return Origin("frame", value.index, columns)


def _choose_dtype(value: Any) -> Any:
    """Return float32 if all columns have it, else float64."""
    types = [value.dtype] if hasattr(value, "dtype") else list(value.dtypes)
    return np.float32 if types and all(str(one) == "float32" for one in types) else np.float64


def _convert_numbers(array: Any) -> Any:
    if array.dtype.kind not in "biufO":
        raise TypeError(f"its dtype is {array.dtype}")
    return array.astype(np.float64)
