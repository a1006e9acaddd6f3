"""Series that are spread over several processes: common starting values, and fits by all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.distributed.group import Group
from lapgrad.distributed.losses import share_callback
from lapgrad.models._state_space.likelihood import LossEvaluation, join_parameters
from lapgrad.models._state_space.starts import Array
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.result import FitResult

_Input = TypeVar("_Input")

#: How many dimensions series have; processes exchange their sizes first.
_SIZES = 3
#: Starting values come from series that all processes see: those with at most this many numbers in all.
_SAMPLE = 1 << 22


def gather_series(who: str, values: Tensor, group: Group) -> Tensor:
    """Return the series (N, T, p) of all processes, or an evenly spaced part of them if they are many.

    Args:
        who: Name of the model, for messages.
        values: (N, T, p), the series of this process; NaN: missing.
        group: The processes.
    """
    if group.size == 1:
        return values
    sizes = torch.zeros(group.size, _SIZES, dtype=torch.float64)
    sizes[group.rank] = torch.tensor(values.shape)
    group.sum_tensors([sizes])
    counts, longest, widths = sizes[:, 0].long(), int(sizes[:, 1].max()), sizes[:, 2]
    if not bool((widths == widths[0]).all()):
        raise _exceptions.ShapeError(
            f"{who}: y has another number of values at each time on another process."
        )
    total, before = int(counts.sum()), int(counts[: group.rank].sum())
    wanted = max(1, min(total, _SAMPLE // max(1, longest * int(widths[0]))))
    chosen = torch.arange(wanted) * total // wanted
    own = chosen[(chosen >= before) & (chosen < before + len(values))] - before
    padded = torch.nn.functional.pad(
        values[own.to(values.device)], (0, 0, 0, longest - values.shape[1]), value=torch.nan
    )
    return group.gather_rows(padded, int((chosen < before).sum()), wanted)


class SharedEvaluation:
    """The loss of the series of all processes and its gradient, at the parameters of the first process."""

    def __init__(self, group: Group, loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> None:
        self._group, self._evaluation = group, LossEvaluation(loss, parameters)

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Set the model to parameters x (k,); return the loss and its gradient (k,)."""
        point = torch.from_numpy(x).clone()
        self._group.copy_from_first([point])
        return self._evaluation(point.numpy())


def read_shared(group: Group | None, read: Callable[[], _Input]) -> _Input:
    """Return ``read()``; an error in it, on any process, is raised on all of them by ``gather_series``."""
    try:
        return read()
    except Exception as error:
        if group is None or group.size == 1:
            raise
        raise group.fail(error, _SIZES * group.size) from error


def run_shared(
    group: Group | None,
    parameters: Sequence[nn.Parameter],
    fit: Callable[..., FitResult],
    progress: bool,
    callback: Callback | None,
) -> FitResult:
    """Return ``fit(progress=, callback=)``; an error in it, on any process, ends it on all of them."""
    if group is None or group.size == 1:
        return fit(progress=progress, callback=callback)
    try:
        return fit(progress=progress and group.is_first, callback=share_callback(group, callback))
    except Exception as error:
        # The others are about to copy the parameters of the first process.
        raised = group.fail(error, len(join_parameters(parameters)))
        if raised is error:
            raise
        raise raised from error
