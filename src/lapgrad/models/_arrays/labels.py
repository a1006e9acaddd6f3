"""Names of columns and labels of rows: what belongs together must have the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lapgrad import _exceptions
from lapgrad.models._arrays.conversion import get_coordinates


def order_columns(who: str, argument: str, value: Any, columns: Sequence[Any] | None) -> Any:
    """Return new inputs with their columns in the order of the training data, if they have the same names.

    Args:
        who: Name of the method, for messages.
        argument: Name of the argument.
        value: The new inputs; what has no columns is returned as it is.
        columns: The names of the columns of the training data; None: they have none.

    Raises:
        OptionError: Both have names, and not the same ones.
    """
    names = list(getattr(value, "columns", ()))
    if not columns or names == list(columns):
        return value
    same = len(set(names)) == len(names) and set(names) == set(columns)
    if not same and names and all(isinstance(name, str) for name in (*names, *columns)):
        raise _exceptions.OptionError(
            f"{who}: {argument} must have the columns {list(columns)} of the training data, got {names}."
        )
    return value[list(columns)] if same else value


def check_same_labels(who: str, indices: Mapping[str, Any]) -> None:
    """Raise an OptionError if the rows of two objects of pandas have different labels.

    Rows 0, 1, 2, ... are often no labels, but a default: they count only if the other object has the same
    ones in another order. Nor do rows 60, 61, 62, ... count beside dates. Objects of different length are not
    compared.

    Args:
        who: Name of the model, for messages.
        indices: The two indices, by the names of the arguments.
    """
    (one, first), (other, second) = ((name, _read_labels(index)) for name, index in indices.items())
    if len(first) != len(second):
        return
    # Missing labels, such as NaN, are equal here.
    differ = (first != second) & ((first == first) | (second == second))
    if not np.any(differ):
        return
    has_dates = any(labels.dtype.kind == "M" for labels in (first, second))
    is_default = any(_are_rows(labels, has_dates) for labels in (first, second))
    if is_default and set(first.tolist()) != set(second.tolist()):
        return
    row = int(np.argmax(differ))
    raise _exceptions.OptionError(
        f"{who}: the rows of {one} and {other} have different labels, at row {row} {_write(first[row])} "
        f"and {_write(second[row])}. Bring them into one order, or pass {other}.to_numpy() if they belong "
        f"together."
    )


def find_left_out(index: Any, other: Any) -> str | None:
    """Return the first label of an index that another one leaves out between others, for messages.

    None: there is none; or the two begin with different labels, or have another order.
    """
    first, second = (_read_labels(one) for one in (index, other))
    if first.dtype.kind == second.dtype.kind == "M":
        first, second = (one.astype("datetime64[us]") for one in (first, second))
    labels, others = first.tolist(), second.tolist()
    known = set(labels)
    shared = [label for label in others if label in known]
    own = set(shared)
    in_order = others[: len(shared)] == shared == [label for label in labels if label in own]
    if not shared or not in_order or labels[0] != shared[0]:
        return None
    reach = labels.index(shared[-1])
    left_out = [place for place in range(reach) if labels[place] not in own]
    return _write(first[left_out[0]]) if left_out else None


def _read_labels(index: Any) -> Any:
    """Return labels as an array: periods as the dates at which they begin, dates in universal time."""
    if getattr(index, "tz", None) is not None:
        index = index.tz_convert(None)
    labels = get_coordinates(index)
    return np.asarray(index) if labels is None else labels


def _are_rows(labels: Any, may_begin_later: bool) -> bool:
    """Return whether labels are the numbers of rows: 0, 1, 2, ..., or a part of them."""
    if labels.dtype.kind not in "iu" or not len(labels):
        return False
    first = labels[0] if may_begin_later else 0
    return bool(np.array_equal(labels, first + np.arange(len(labels))))


def _write(label: Any) -> str:
    """Return a label for messages, dates without a time of midnight."""
    is_date = isinstance(label, np.datetime64)
    return str(np.datetime_as_string(label, unit="auto")) if is_date else str(label)
