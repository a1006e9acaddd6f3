"""Checks of the data that users pass to models.

Errors name the model, the argument, what was passed and what is wanted. The checks run once per data set and
may wait for the device.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lapgrad import _errors, _exceptions

_FLOATS = (torch.float32, torch.float64)
_ROWS_SHOWN = 5


def check_inputs(
    who: str, X: Tensor, name: str = "X", *, columns: int | None = None, empty: bool = False
) -> Tensor:
    """Return ``X`` as a finite matrix (n, d); a vector (n,) is n points of one dimension.

    Args:
        who: Name of the model or function, for messages.
        X: The argument.
        name: Name of the argument, for messages.
        columns: How many columns there must be; None: any number.
        empty: Whether n may be 0.
    """
    X = check_float_tensor(who, X, name)
    seen = tuple(X.shape)
    if X.dim() == 1:
        X = X[:, None]
    if X.dim() != 2:
        raise _exceptions.ShapeError(f"{who}: {name} must have shape (n, d) or (n,), got {seen}.")
    if columns is not None and X.shape[1] != columns:
        raise _exceptions.ShapeError(
            f"{who}: {name} must have {columns} column{'s' if columns != 1 else ''} like the training data, "
            f"got shape {seen}."
        )
    if not X.shape[0] and not empty:
        raise _exceptions.ShapeError(f"{who}: {name} has no rows, at least one is wanted.")
    check_finite_rows(who, X, name)
    return X


def check_targets(who: str, y: Tensor, X: Tensor, name: str = "y", *, outputs: int | None = None) -> Tensor:
    """Return ``y`` as a finite matrix (n, k) with the rows, dtype and device of X; a vector is one output."""
    y = check_float_tensor(who, y, name)
    seen = tuple(y.shape)
    if y.dim() == 1:
        y = y[:, None]
    if y.dim() != 2 or y.shape[0] != X.shape[0] or not y.shape[1]:
        raise _exceptions.ShapeError(
            f"{who}: {name} must have shape (n,) or (n, k) with n = {X.shape[0]} like X, got {seen}."
        )
    if outputs is not None and y.shape[1] != outputs:
        raise _exceptions.ShapeError(f"{who}: {name} must have {outputs} outputs, got shape {seen}.")
    check_same_kind(who, X=X, **{name: y})
    check_finite_rows(who, y, name)
    return y


def check_noise(who: str, noise: Tensor, count: int, name: str = "noise_var") -> Tensor:
    """Return variances (count,); raise if they are not positive, finite, and as many."""
    if noise.shape != (count,):
        raise _exceptions.ShapeError(
            f"{who}: {name} must be a scalar, or have one entry for each of the {count} observations, got "
            f"shape {tuple(noise.shape)}."
        )
    if not bool((noise.isfinite() & (noise > 0)).all()):
        raise _exceptions.OptionError(f"{who}: {name} must be positive and finite.")
    return noise


def check_noise_limits(who: str, noise_var: object, noise_floor: object) -> None:
    """Raise an OptionError unless the noise is None or numbers, and its floor None, zero or positive."""
    try:
        _ = None if noise_var is None else torch.as_tensor(noise_var, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise _exceptions.OptionError(f"{who}: noise_var must be a number, got {noise_var!r}.") from None
    if noise_floor is None:
        return
    if not (_is_number(noise_floor) and 0.0 <= float(cast(float, noise_floor)) < math.inf):
        raise _exceptions.OptionError(
            f"{who}: noise_floor must be a number, zero or positive, got {noise_floor!r}."
        )


def check_float_tensor(who: str, value: Tensor, name: str) -> Tensor:
    """Return ``value``; raise if it is not a tensor of float32 or float64."""
    check_dense_tensor(who, value, name)
    if value.dtype not in _FLOATS:
        raise _errors.wrong_dtype(who, name, value)
    return value


def check_dense_tensor(who: str, value: object, name: str) -> None:
    """Raise if ``value`` is not a tensor, or a sparse one."""
    if not isinstance(value, Tensor):
        raise _errors.wrong_dtype(who, name, value)
    if value.layout is not torch.strided:
        raise _errors.sparse_tensor(who, name, value.layout)


def check_same_kind(who: str, **tensors: Tensor) -> None:
    """Raise if the tensors differ in dtype or device."""
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        raise _errors.mixed_dtypes(who, tensors)
    if len({tensor.device for tensor in tensors.values()}) > 1:
        raise _errors.mixed_devices(who, tensors)


def check_finite_rows(who: str, values: Tensor, name: str, *, first: int = 0) -> None:
    """Raise if there is a NaN or an infinity; the error names the rows (of the first dimension).

    ``first``: The number of the first row, where the values are a part of the data.
    """
    if values.is_meta:
        raise _errors.meta_tensor(who, name)
    good = values.isfinite()
    if bool(good.all()):
        return
    bad = (~good.flatten(1).all(1) if values.dim() > 1 else ~good).nonzero()[:, 0].tolist()
    more = f" and {len(bad) - _ROWS_SHOWN} more" if len(bad) > _ROWS_SHOWN else ""
    rows = ", ".join(str(first + row) for row in bad[:_ROWS_SHOWN]) + more
    raise _exceptions.NonFiniteError(
        f"{who}: {name} contains NaN or infinity in row{'s' if len(bad) > 1 else ''} {rows}. "
        f"Remove these rows, or fill them in.",
        (first + bad[0],),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def is_integer(value: object, least: int = 1) -> bool:
    """Return whether a value is an integer, of Python or NumPy, that is not below ``least``; no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def check_steps(who: str, steps: object) -> None:
    """Raise an OptionError unless ``steps`` is a positive integer."""
    if not is_integer(steps):
        raise _exceptions.OptionError(f"{who}: steps must be a positive integer, got {steps!r}.")


def read_chunk(who: str, chunk: int | None) -> int | None:
    """Return ``chunk`` as an integer of Python, or None; raise if it is neither None nor a positive one."""
    if chunk is not None and not is_integer(chunk):
        raise _exceptions.OptionError(f"{who}: chunk must be positive, and an integer, got {chunk!r}.")
    return None if chunk is None else int(chunk)


def check_fit_options(who: str, tolerance: object, lr: object, callback: object) -> None:
    """Raise an OptionError for options of a fit that are no numbers, or no functions."""
    is_rate = lr is None or callable(lr) or (_is_number(lr) and float(cast(float, lr)) > 0.0)
    if not (is_rate and _is_number(tolerance) and float(cast(float, tolerance)) >= 0.0):
        raise _exceptions.OptionError(
            f"{who}: tolerance and lr must be numbers that are not negative, got {tolerance!r} and {lr!r}."
        )
    if callback is not None and not callable(callback):
        raise _exceptions.OptionError(f"{who}: callback must be a function, got {callback!r}.")


def check_gradients_are_allowed(who: str) -> None:
    """Raise an OptionError within ``torch.inference_mode()``."""
    if torch.is_inference_mode_enabled():
        raise _exceptions.OptionError(f"{who}: a fit needs gradients, which torch.inference_mode() forbids.")


def describe_kind(value: object) -> str:
    """Return what an argument is, for messages: its type, or that it is a class and not an instance."""
    if isinstance(value, type):
        return f"the class {value.__name__}: write {value.__name__}(...)"
    return type(value).__name__


def check_flag(who: str, name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise _exceptions.OptionError(f"{who}: {name} must be True or False, got {value!r}.")


def make_generator(
    who: str, given: torch.Generator | int | None, device: torch.device
) -> torch.Generator | None:
    """Return a generator, from a seed if an int is given; None stands for torch's default generator."""
    if given is None or isinstance(given, torch.Generator):
        return given
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise _exceptions.OptionError(
            f"{who}: generator must be a torch.Generator, an int or None, got {type(given).__name__}."
        )
    return torch.Generator(device).manual_seed(int(given))
