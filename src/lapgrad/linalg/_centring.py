"""Centred observations in a unit of their size (a power of two): the first step of ``pca`` and ``cca``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like
from lapgrad.linalg._scale import find_unit


def centre(X: Tensor, *, least: float = 0.0, degrees: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means of X's columns, (X - mean) / unit, and the unit, a power of two: see ``find_unit``.

    Args:
        X: (*batch, n, d), n > 0.
        least: The unit is at least about this.
        degrees: If positive: centred is NaN where a variance with this divisor overflows.

    Returns:
        mean (*batch, d), centred (*batch, n, d) and unit (*batch, 1, 1), which has no derivative.
    """
    mean, centred, unit = operator.call(X, least, degrees, X.shape[-2])
    return mean, centred, unit


def _centre(X: Tensor, least: float, degrees: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    if has_kernel("centre", X) and lookup("serves_centre", X)(X):
        results = _fake(X, least, degrees, rows)
        lookup("centre", X)(*results, X, least, degrees)
        return results
    mean = X.mean(-2)
    centred = X - mean.unsqueeze(-2)
    unit = find_unit(centred, least)
    centred *= unit.reciprocal()
    return mean, _refuse_overflow(centred, unit, degrees) if degrees else centred, unit


def _refuse_overflow(centred: Tensor, unit: Tensor, degrees: int) -> Tensor:
    """Return ``centred``, with NaN for items with a variance that overflows even in the item's unit."""
    square = unit.square().squeeze(-1)
    if centred.is_cpu and bool((4.0 * centred.shape[-2] / degrees * square).isfinite().all()):
        return centred  # entries are below 2 in their unit
    variances = centred.square().sum(-2) / degrees * square
    return torch.where(variances.isfinite().all(-1)[..., None, None], centred, torch.nan)


def _fake(X: Tensor, least: float, degrees: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised results."""
    batch, d = X.shape[:-2], X.shape[-1]
    return X.new_empty((*batch, d)), X.new_empty(X.shape), X.new_empty((*batch, 1, 1))


def _compute_vjp(g_centred: Tensor, g_mean: Tensor | None, unit: Tensor) -> Tensor:
    if not has_kernel("centre_vjp", g_centred) or not lookup("serves_centre", g_centred)(g_centred):
        return _compute_vjp_composite(g_centred, g_mean, unit)
    gX = allocate_like(g_centred)
    lookup("centre_vjp", g_centred)(gX, g_centred, g_mean, unit)
    return gX


def _compute_vjp_composite(g_centred: Tensor, g_mean: Tensor | None, unit: Tensor) -> Tensor:
    """gX = G - mean(G) + g_mean / n, G = g_centred / unit."""
    G = g_centred * unit.reciprocal()
    shift = G.mean(-2)
    if g_mean is not None:
        shift = shift - g_mean / G.shape[-2]
    return G - shift.unsqueeze(-2)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    g_mean: Tensor | None,
    g_centred: Tensor | None,
    g_unit: None,
) -> tuple[Tensor | None]:
    (unit,), rows = saved, flags[_ROWS]
    if g_centred is not None:
        return (operator_vjp.call(g_centred, g_mean, unit),)
    if g_mean is None:
        return (None,)
    return ((g_mean / rows).unsqueeze(-2).expand(*g_mean.shape[:-1], rows, g_mean.shape[-1]),)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dX: Tensor) -> tuple[Tensor, Tensor, None]:
    mean = dX.mean(-2)
    return mean, (dX - mean.unsqueeze(-2)) * saved[0].reciprocal(), None


operator_vjp = define_fused(
    "centre_vjp",
    "(Tensor g_centred, Tensor? g_mean, Tensor unit) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda g_centred, g_mean, unit: g_centred.new_empty(g_centred.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("centre_vjp"),
)

_UNIT = 3
#: The position of the number of rows among the flags. The gradient of the mean needs nothing else of X.
_ROWS = 2

operator = define(
    "centre",
    "(Tensor X, float least, SymInt degrees, SymInt rows) -> (Tensor, Tensor, Tensor)",
    kernel=_centre,
    fake=_fake,
    formulas=Formulas(saves=((_UNIT,),), vjp=_vjp, jvp=_jvp, constant_results=(2,)),
)
