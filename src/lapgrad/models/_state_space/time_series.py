"""Series of different lengths as one padded tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models import _checks

_ROUNDING = 16.0
"""A series whose standard deviation is this many roundings of its mean, or fewer, is a constant."""


class Series(NamedTuple):
    """Several series in one tensor.

    Attributes:
        values: (N, T, p), padded with NaN.
        lengths: (N,), how many steps each has.
        single: Whether one series was given, not a list or a batch.
        vector: Whether the series were given without a dimension p.
    """

    values: Tensor
    lengths: Tensor
    single: bool
    vector: bool


def pad_series(who: str, y: Tensor | Sequence[Tensor]) -> Series:
    """Check series, and return them as one tensor."""
    if isinstance(y, Tensor):
        _checks.check_float_tensor(who, y, "y")
        if y.dim() not in (1, 2, 3):
            raise _exceptions.ShapeError(
                f"{who}: y must have shape (T,), (T, p) or (N, T, p), got {tuple(y.shape)}."
            )
        single, vector = y.dim() < 3, y.dim() == 1
        parts = [y] if single else list(y)
    else:
        parts, single = list(y), False
        for i, part in enumerate(parts):
            _checks.check_float_tensor(who, part, f"y[{i}]")
        vector = bool(parts) and all(part.dim() == 1 for part in parts)
    if not parts:
        raise _exceptions.ShapeError(f"{who}: y has no series, at least one is wanted.")
    columns = [part.detach()[:, None] if part.dim() == 1 else part.detach() for part in parts]
    sizes = {tuple(part.shape[1:]) for part in columns}
    if len(sizes) > 1 or any(part.dim() != 2 for part in columns) or columns[0].shape[-1] == 0:
        raise _exceptions.ShapeError(
            f"{who}: all series must have shape (T,) or (T, p) with one p, got shapes "
            f"{', '.join(str(tuple(part.shape)) for part in parts[:5])}."
        )
    _checks.check_same_kind(who, **{f"y[{i}]": part for i, part in enumerate(columns)})
    lengths = [len(part) for part in columns]
    values = columns[0].new_full((len(columns), max(lengths), columns[0].shape[-1]), torch.nan)
    for i, part in enumerate(columns):
        values[i, : len(part)] = part
    infinite = values.isinf()
    if bool(infinite.any()):
        i, step = infinite.any(-1).nonzero()[0].tolist()
        raise _exceptions.NonFiniteError(f"{who}: series {i} is infinite at step {step}.", (i, step))
    if bool(values.isnan().all()):
        raise _exceptions.NonFiniteError(f"{who}: y has no observation: all values are NaN.")
    return Series(values, torch.tensor(lengths, device=values.device), single, vector)


def compute_variances(values: Tensor) -> Tensor:
    """Return the variance (p,) over series and times; for a constant its square, and 1 for 0."""
    # NumPy needs less time for short series than torch.
    flat = values.reshape(-1, values.shape[-1]).double().cpu().numpy()
    seen = ~np.isnan(flat)
    count = np.maximum(seen.sum(0), 1)
    with np.errstate(over="ignore"):
        mean = np.where(seen, flat, 0.0).sum(0) / count
        variance = np.where(seen, np.square(flat - mean), 0.0).sum(0) / count
        square = np.square(mean)
    rounding = (_ROUNDING * torch.finfo(values.dtype).eps) ** 2
    good = np.isfinite(variance) & (variance > rounding * square)
    substitute = np.where(square == 0.0, 1.0, np.nan_to_num(square))
    return torch.from_numpy(np.where(good, variance, substitute)).to(values.device)


def drop_times(X: Tensor, k: int) -> Tensor:
    """Return X (N, T, ...) from time k on; X itself if it does not vary with time (T = 1)."""
    return X[:, k:] if X.shape[1] > 1 else X


def list_later_times(lengths: Tensor, steps: int) -> Tensor:
    """Return the ``steps`` times after the end of each series, (N, steps)."""
    return lengths[:, None] + torch.arange(steps, device=lengths.device)


def gather_times(X: Tensor, times: Tensor) -> Tensor:
    """Return the entries (N, steps, ...) of X (N or 1, T or 1, ...) at the times (N, steps)."""
    N, own = len(times), X.dim() - 2
    if X.shape[1] == 1:
        return X.expand(N, times.shape[1], *X.shape[2:])
    X = X.expand(N, *X.shape[1:])
    index = times.view(*times.shape, *(1,) * own).expand(*times.shape, *X.shape[2:])
    return X.gather(1, index)


def check_steps(who: str, steps: int) -> int:
    """Return ``steps``; raise if it is no number of steps."""
    if not _checks.is_integer(steps, 0):
        raise _exceptions.OptionError(f"{who}: steps must be a number of steps, at least 0, got {steps!r}.")
    return int(steps)
