"""Covariances of observations, their Cholesky factors, and checks of their options."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _exceptions
from lapgrad._torch.layout import check_count, check_not_negative
from lapgrad.linalg._scale import find_unit
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm


def check_options(function: str, k: int | None, largest: int, bound: str, regularisation: float) -> None:
    """Raise if there are no ``k`` directions, or if the regularisation is negative."""
    if k is not None:
        check_count(function, "k", k, 1, largest, bound)
    check_not_negative(function, "regularisation", regularisation)


def check_rows(function: str, argument: str, degrees: int, columns: int, regularisation: float) -> None:
    """Raise if a covariance without regularisation has fewer degrees of freedom than columns."""
    if degrees < 1 or (degrees < columns and regularisation == 0.0):
        wanted = "give it more rows" if degrees < 1 else "give it more rows, or a regularisation > 0"
        raise _exceptions.OptionError(
            f"{function}: the covariance of {argument} is singular: {columns} columns, and its rows leave "
            f"{max(degrees, 0)} degrees of freedom; {wanted}."
        )


def name_not_finite(
    function: str, what: str, error: _exceptions.NonFiniteError
) -> _exceptions.NonFiniteError:
    """Return the error of an operator on a covariance as one that names the observations."""
    where = f" (batch item {error.item})" if error.item else ""
    return _exceptions.NonFiniteError(f"{function}: {what}{where} contains NaN or infinity.", error.item)


def unwhiten_directions(L: Tensor, unit: Tensor, rows: Tensor) -> Tensor:
    """L^-T rows^T / unit: whitened directions, in rows, as columns of weights for the observations."""
    # A copy in row-major order: with one row, its transpose would count as contiguous in any case.
    columns = rows.mT.clone(memory_format=torch.contiguous_format)
    return trsm(L, columns, transpose=True) * unit.reciprocal()


def normalise(centred: Tensor, regularisation: float) -> tuple[Tensor, Tensor]:
    """Return ``centred`` in a unit in which its regularised covariance is of order 1, and the unit."""
    unit = find_unit(centred, math.sqrt(regularisation))
    return centred * unit.reciprocal(), unit


def factorise_covariance(
    function: str, what: str, centred: Tensor, unit: Tensor, degrees: int, regularisation: float
) -> Tensor:
    """Return the Cholesky factor of centred^T centred / degrees + regularisation / unit^2 I."""
    # In torch.jit.trace sizes are tensors, whose quotients have float32.
    covariance = syrk(centred, transpose=True, alpha=1.0 / float(degrees))
    if regularisation != 0.0 or is_compiling():
        identity = covariance.new_ones(covariance.shape[-1]).diag_embed()
        covariance = covariance + (regularisation / unit / unit) * identity
    try:
        return potrf(covariance)
    except _exceptions.NonFiniteError as error:
        raise name_not_finite(function, what, error) from error
    except _exceptions.NotPositiveDefiniteError as error:
        where = f" (batch item {error.item})" if error.item else ""
        raise _exceptions.NotPositiveDefiniteError(
            f"{function}: {what}{where} is singular: columns depend on each other. "
            f"Leave some out, or give a regularisation > 0.",
            error.item,
            error.minor,
        ) from error
