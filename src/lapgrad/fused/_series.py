"""Checks of the operands of a state space model, and broadcasting over series and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad._torch import layout as _layout


class Operands(NamedTuple):
    """The operands of the registered operator: one dimension counts all series, one the times.

    Attributes:
        flat: y (N, T, p), A, B, Q, R (N, T, rows, columns), m (N, n), P (N, n, n), c (N, T, n). N and T are 1
            where there is one for all. With d diffuse directions m is (N, n, 1 + d): they are its further
            columns.
        batch: The leading dimensions that N stands for.
    """

    flat: tuple[Tensor, ...]
    batch: torch.Size


#: Dimensions of one matrix or vector behind those of time, if it has one, and series.
_OWN = {"y": 1, "A": 2, "B": 2, "Q": 2, "R": 2, "m": 1, "P": 2, "state_offset": 1, "observation_offset": 1}
_OWN |= {"diffuse": 2}
_WITHOUT_TIME = ("m", "P", "diffuse")


def prepare_operands(
    operator: str,
    y: Tensor,
    A: Tensor,
    B: Tensor,
    Q: Tensor,
    R: Tensor,
    m: Tensor,
    P: Tensor,
    state_offset: Tensor | float | None,
    observation_offset: Tensor | float | None,
    diffuse: Tensor | int | None = None,
) -> Operands:
    """Check the operands of ``kalman_nll``, and bring them into the form of the registered operator."""
    given = {"y": _layout.check_matrix(operator, "y", y)}
    given["A"] = _layout.check_square_matrix(operator, "A", A)
    given["B"] = _layout.check_matrix(operator, "B", B)
    given["Q"] = _layout.check_square_matrix(operator, "Q", Q)
    given["R"] = _layout.check_square_matrix(operator, "R", R)
    given["m"] = _layout.check_vector(operator, "m", m)
    given["P"] = _layout.check_square_matrix(operator, "P", P)
    if isinstance(diffuse, int):
        states = given["m"].shape[-1]
        if not 0 <= diffuse <= states:
            raise _exceptions.OptionError(
                f"{operator}: diffuse must be a matrix or a number from 0 to {states}, the number of states; "
                f"got {diffuse}."
            )
        diffuse = torch.eye(states, dtype=given["y"].dtype, device=given["y"].device)[:, :diffuse]
    if diffuse is not None:
        given["diffuse"] = _layout.check_matrix(operator, "diffuse", diffuse)
    if isinstance(observation_offset, int | float):
        given["y"], observation_offset = given["y"] - observation_offset, None
    if state_offset is None or isinstance(state_offset, int | float):
        n = given["A"].shape[-1]
        state_offset = given["y"].new_full((n,), 0.0 if state_offset is None else float(state_offset))
    else:
        given["state_offset"] = _layout.check_vector(operator, "state_offset", state_offset)
    if observation_offset is not None:
        given["observation_offset"] = _layout.check_vector(operator, "observation_offset", observation_offset)
    _layout.check_same_kind(operator, **given)
    times, p = given["y"].shape[-2:]
    n = given["A"].shape[-1]
    _check_sizes(operator, given, n, p)
    # From here on each operand but m and P has a dimension of time, of size 1 where it does not vary.
    timed = {
        name: tensor if name in _WITHOUT_TIME or tensor.dim() > _OWN[name] else tensor[None]
        for name, tensor in given.items()
    }
    if observation_offset is not None:
        offset = timed.pop("observation_offset")
        _check_times(operator, given, {"observation_offset": offset}, times)
        timed["y"] = _subtract_offset(operator, given, offset)
    _check_times(operator, given, timed, times)
    batch = _broadcast_batch(operator, given, timed)
    timed.setdefault("state_offset", state_offset[None])
    names = ("y", "A", "B", "Q", "R", "m", "P", "state_offset")
    flat = [_flatten_leading(timed[name], _count_own_dimensions(name), batch) for name in names]
    flat[0] = flat[0].expand(batch.numel(), *flat[0].shape[1:])
    if diffuse is not None:
        directions = _flatten_leading(timed["diffuse"], _count_own_dimensions("diffuse"), batch)
        count = max(len(flat[5]), len(directions))
        columns = (X.expand(count, *X.shape[1:]) for X in (flat[5][..., None], directions))
        flat[5] = torch.cat(tuple(columns), -1)
    return Operands(tuple(flat), batch)


def _check_sizes(operator: str, given: dict[str, Tensor], n: int, p: int) -> None:
    wanted = {"A": (n, n), "B": (p, n), "Q": (n, n), "R": (p, p), "m": (n,), "P": (n, n)}
    wanted |= {"state_offset": (n,), "observation_offset": (p,)}
    for name, tensor in given.items():
        seen = tuple(tensor.shape[-_OWN[name] :])
        if name == "diffuse" and seen[0] == n and seen[1] <= n:
            continue
        if name != "y" and seen != wanted.get(name):
            raise _errors.shapes_do_not_fit(
                operator,
                given,
                "with p observations, the last dimension of y, and n states, the order of A, "
                f"{name} must end in {_describe_shape(name)}",
            )


def _describe_shape(name: str) -> str:
    return {
        "B": "(p, n)",
        "R": "(p, p)",
        "m": "(n,)",
        "diffuse": "(n, d), d at most n",
        "state_offset": "(n,)",
        "observation_offset": "(p,)",
    }.get(name, "(n, n)")


def _check_times(operator: str, given: dict[str, Tensor], timed: dict[str, Tensor], times: int) -> None:
    for name, tensor in timed.items():
        if name in ("y", *_WITHOUT_TIME):
            continue
        if tensor.shape[-_OWN[name] - 1] not in (1, times):
            raise _errors.shapes_do_not_fit(
                operator,
                given,
                f"the dimension of time of {name}, the one before its last {_OWN[name]}, must be that of "
                f"y, or 1",
            )


def _subtract_offset(operator: str, given: dict[str, Tensor], offset: Tensor) -> Tensor:
    try:
        return given["y"] - offset
    except RuntimeError:
        raise _leading_dimensions_differ(operator, given) from None


def _count_own_dimensions(name: str) -> int:
    return _OWN[name] + (name not in _WITHOUT_TIME)


def _broadcast_batch(operator: str, given: dict[str, Tensor], timed: dict[str, Tensor]) -> torch.Size:
    try:
        return _layout.broadcast_shapes(
            *[tensor.shape[: tensor.dim() - _count_own_dimensions(name)] for name, tensor in timed.items()]
        )
    except RuntimeError:
        raise _leading_dimensions_differ(operator, given) from None


def _leading_dimensions_differ(operator: str, given: dict[str, Tensor]) -> _exceptions.ShapeError:
    return _errors.shapes_do_not_fit(
        operator,
        given,
        "the leading dimensions, those before time, must broadcast against each other",
    )


def _flatten_leading(tensor: Tensor, own: int, batch: Sequence[int]) -> Tensor:
    """``tensor`` with one leading dimension in place of several; of size 1 if all of them have size 1."""
    leading, rest = tensor.shape[: tensor.dim() - own], tensor.shape[tensor.dim() - own :]
    if all(size == 1 for size in leading):
        return tensor.reshape(1, *rest)
    return tensor.expand(*batch, *rest).reshape(torch.Size(batch).numel(), *rest)


def count_series(operand: Tensor, mapped: int | None) -> int:
    """Return the number of series of an operand whose dimension ``mapped``, if not None, vmap has added."""
    return operand.shape[0] if mapped is None else operand.movedim(mapped, 0).shape[1]


def merge_mapped(operand: Tensor, mapped: int | None, size: int, series: int) -> Tensor:
    """(size * series, ...): the mapped dimension and that of the series as one."""
    front = operand.expand(size, *operand.shape) if mapped is None else operand.movedim(mapped, 0)
    return front.expand(size, series, *front.shape[2:]).reshape(size * series, *front.shape[2:])
