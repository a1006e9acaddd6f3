"""Methods of models that take and return arrays of NumPy and objects of pandas where they work on tensors.

``accept_arrays`` wraps the methods of a class whose arguments are data, by the names of these arguments.
Results for new inputs have the kind and index of these inputs; results for the training data have those of
the training data. A call with tensors passes through.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models import _checks
from lapgrad.models._arrays import conversion as _conversion
from lapgrad.models._arrays.conversion import Origin
from lapgrad.models._arrays.labels import check_same_labels, order_columns

#: Arguments that are data.
_DATA = ("X", "y", "Y", "tasks", "inducing", "X_new", "y_new")

#: Those of them that may be lists of numbers.
_NUMBERS = ("X", "y", "X_new", "y_new")

#: Methods that take data, or return values for the training data.
_METHODS = (
    "__init__", "fit", "predict", "predict_proba", "sample", "log_prob", "add_data", "observe",
    "embed", "reconstruct", "bound", "log_likelihood", "leave_one_out", "plot",
)  # fmt: skip


#: Marks methods that are wrapped already, which a subclass inherits.
_MARK = "__accepts_arrays__"


def accept_arrays(kind: type) -> None:
    """Let the methods of a class of models, its own and inherited ones, take arrays and objects of pandas."""
    for name in _METHODS:
        method = getattr(kind, name, None)
        if callable(method) and not hasattr(method, _MARK):
            setattr(kind, name, _wrap(name, method))


def _wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(method).parameters
    arguments = [argument for argument in parameters if argument != "self"]
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in parameters.values())
    places = {argument: i for i, argument in enumerate(arguments) if argument in _DATA}
    who = "" if name == "__init__" else f".{name}"
    flags = [
        option.name
        for option in parameters.values()
        if option.kind is option.KEYWORD_ONLY and isinstance(option.default, bool)
    ]

    @functools.wraps(method)
    def call(self: nn.Module, *given: Any, **options: Any) -> Any:
        found: dict[str, Origin] = {}
        positional = list(given)
        if not takes_any and not options.keys() <= parameters.keys():
            raise _describe_unknown_options(type(self).__name__ + who, options, arguments)
        for flag in flags:
            if flag in options:
                _check_flag(self, name, flag, options)
        for argument, place in places.items():
            holder: Any = positional if place < len(positional) else options
            key: Any = place if place < len(positional) else argument
            if key == argument and argument not in options:
                continue
            value = holder[key]
            if isinstance(value, Tensor) or (argument == "y_new" and hasattr(self, "classes")):
                continue
            if argument == "tasks":
                holder[key] = _read_tasks(type(self).__name__, value)
            elif _conversion.is_arraylike(value) or (
                argument in _NUMBERS and isinstance(value, list | tuple)
            ):
                value = _order_columns(self, type(self).__name__ + who, argument, value)
                tensor, found[argument] = _conversion.read_array(type(self).__name__ + who, value, argument)
                holder[key] = tensor if name == "__init__" else _move_to_model(self, tensor)
        _check_labels(type(self).__name__ + who, found)
        if name == "__init__":
            if found:
                _match_arguments(places, positional, options, found)
            method(self, *positional, **options)
            if found:
                _keep_origins(self, found)
            return None
        result = method(self, *positional, **options)
        if name == "plot":
            return _label_axes(self, result)
        origin = found.get("X_new") or found.get("Y")
        if name == "leave_one_out":
            origin = self.__dict__.get("_origins", {}).get("y")
        if origin is None or name == "fit":
            return result
        return _write_result(self, name, result, origin)

    setattr(call, _MARK, True)
    return call


def _describe_unknown_options(who: str, options: dict[str, Any], known: Sequence[str]) -> TypeError:
    """Return the error for an option that a method does not have, with the name that it may be meant for."""
    name = next(option for option in options if option not in known)
    near = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{who}() got an unexpected keyword argument {name!r}.{hint}")


def _check_flag(model: nn.Module, method: str, flag: str, options: dict[str, Any]) -> None:
    """Raise an OptionError if an option is neither True nor False; ``noise`` may be variances of rows."""
    value, who = options[flag], type(model).__name__ + ("" if method == "__init__" else f".{method}")
    if isinstance(value, bool | np.bool_):
        return
    if flag != "noise" or not hasattr(model, "point_noise"):
        _checks.check_flag(who, flag, value)
    elif _conversion.is_arraylike(value):
        options[flag] = _move_to_model(model, _conversion.read_array(who, value, flag)[0])
    elif not isinstance(value, Tensor):
        raise _exceptions.OptionError(
            f"{who}: noise must be True, False, or the variances of all rows, got {value!r}."
        )


def describe_origins(model: nn.Module) -> dict[str, Any]:
    """Return the entry of a file about the kind of the data, in types that JSON knows; often nothing."""
    origins: dict[str, Origin] = model.__dict__.get("_origins", {})
    names = {
        name: [None if column is None else str(column) for column in origin.columns or ()]
        for name, origin in origins.items()
    }
    kept = {
        name: {"columns": names[name], "has_dates": origin.has_dates}
        for name, origin in origins.items()
        if origin.has_dates or any(names[name])
    }
    return {"origins": kept} if kept else {}


def restore_origins(model: nn.Module, kept: dict[str, Any] | None) -> None:
    """Restore the kind of the data from the entry of ``describe_origins``; None: there is none."""
    if kept:
        found = {
            name: Origin("array", None, list(one["columns"]) or None, bool(one["has_dates"]))
            for name, one in kept.items()
        }
        _keep_origins(model, found)


def _keep_origins(model: nn.Module, found: dict[str, Origin]) -> None:
    known = {name: origin for name, origin in found.items() if name in ("X", "y", "Y")}
    model.__dict__["_origins"] = known


def _read_tasks(who: str, tasks: Any) -> Any:
    """Return pairs of inputs and targets as tensors, if they are arrays; anything else as it is."""
    if not isinstance(tasks, list | tuple):
        return tasks
    read = []
    for i, task in enumerate(tasks):
        if not isinstance(task, list | tuple) or not any(_is_array(part) for part in task):
            read.append(task)
            continue
        read.append(
            tuple(
                _conversion.read_array(who, part, f"tasks[{i}]")[0] if _is_array(part) else part
                for part in task
            )
        )
    return read


def _order_columns(model: nn.Module, who: str, argument: str, value: Any) -> Any:
    """Return new inputs with their columns in the order of the training data; other values as they are."""
    known: Origin | None = model.__dict__.get("_origins", {}).get("X") if argument == "X_new" else None
    return value if known is None else order_columns(who, argument, value, known.columns)


def _check_labels(who: str, found: dict[str, Origin]) -> None:
    """Raise an OptionError if inputs and targets are objects of pandas whose rows have other labels."""
    labelled = [(name, origin.index) for name, origin in found.items() if origin.index is not None]
    if len(labelled) == 2:
        check_same_labels(who, dict(labelled))


def _is_array(value: Any) -> bool:
    return _conversion.is_arraylike(value) and not isinstance(value, Tensor)


def _move_to_model(model: nn.Module, tensor: Tensor) -> Tensor:
    """Return numbers in the dtype and on the device of the model."""
    for own in (*model.buffers(), *model.parameters()):
        if own.is_floating_point():
            return tensor.to(own)
    return tensor


def _match_arguments(
    places: dict[str, int], positional: list[Any], options: dict[str, Any], found: dict[str, Origin]
) -> None:
    """Give arrays the dtype and device of the tensors beside them; without tensors, the larger dtype."""
    holders: list[tuple[Any, Any, bool]] = []
    for argument, place in places.items():
        holder: Any = positional if place < len(positional) else options
        key: Any = place if place < len(positional) else argument
        if (key != argument or argument in options) and isinstance(holder[key], Tensor):
            holders.append((holder, key, argument in found))
    tensors = [holder[key] for holder, key, is_read in holders if not is_read]
    target = tensors[0] if tensors else None
    if target is None:
        read = [holder[key] for holder, key, _ in holders]
        target = read[0].new_empty(0, dtype=functools.reduce(torch.promote_types, [t.dtype for t in read]))
    for holder, key, is_read in holders:
        if is_read:
            holder[key] = holder[key].to(target)


def _write_result(model: nn.Module, name: str, result: Any, origin: Origin) -> Any:
    """Return values for the rows of ``origin`` as objects of its kind, with the columns of the model."""
    targets: Origin | None = model.__dict__.get("_origins", {}).get("y")
    classes = getattr(model, "classes", None)
    names = targets.columns if targets is not None else None
    rows = Origin(origin.kind, origin.index, origin.columns if name == "reconstruct" else names)

    def write(values: Any, columns: Sequence[Any] | None = None) -> Any:
        if isinstance(values, np.ndarray):
            return _conversion.label_rows(values, rows)
        if not isinstance(values, Tensor):
            return values
        own = rows if columns is None else Origin(rows.kind, rows.index, list(columns))
        if name == "sample":
            own = Origin("array")
        return _conversion.write_array(values, own)

    if classes is not None and name == "predict_proba":
        return write(result, classes)
    if not isinstance(result, tuple):
        return write(result)
    names_of_fields = list(inspect.signature(type(result)).parameters)
    return type(result)(
        *(
            write(values, _name_columns(field, values, classes, rows))
            for field, values in zip(names_of_fields, result, strict=True)
        )
    )


def _name_columns(field: str, values: Any, classes: Any, rows: Origin) -> Sequence[Any] | None:
    """Return the names of the columns of a field: classes, the rows of a covariance; None: targets."""
    if field == "probabilities" and classes is not None:
        return list(classes)
    is_covariance = field == "variance" and isinstance(values, Tensor) and values.dim() == 2
    if is_covariance and values.shape[0] == values.shape[1] and rows.index is not None:
        names = rows.columns
        if names is None or len(names) != values.shape[1] or len(names) == 1:
            return list(rows.index)
    return None


def _label_axes(model: nn.Module, axes: Any) -> Any:
    """Name the axes of a plot by the columns of the data, and write dates as dates."""
    origins: dict[str, Origin] = model.__dict__.get("_origins", {})
    x, y = origins.get("X"), origins.get("y")
    if x is not None and x.columns and x.columns[0] is not None:
        axes.set_xlabel(str(x.columns[0]))
    if y is not None and y.columns and len(y.columns) == 1 and y.columns[0] is not None:
        axes.set_ylabel(str(y.columns[0]))
    if x is not None and x.has_dates:
        from matplotlib import dates

        locator = dates.AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    return axes
