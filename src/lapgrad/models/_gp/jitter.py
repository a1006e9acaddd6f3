"""Factorisations of matrices that are positive definite except for rounding errors.

If a factorisation fails, it is tried again with jitter added to the diagonal, as little as suffices, relative
to the mean of the diagonal. A ``JitterWarning`` says how much it was, and models keep it as ``jitter``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.ops.potrf import potrf

_Result = TypeVar("_Result")

_FIRST = 100.0
"""The first jitter in units of eps: the rounding error of a matrix of order 100."""
_GROWTH = 10.0
_LARGEST = {torch.float64: 1e-4, torch.float32: 2e-2}
"""The largest jitter: a matrix that needs more is not positive semi-definite."""


def retry_with_jitter(
    who: str, dtype: torch.dtype, evaluate: Callable[[float], _Result]
) -> tuple[_Result, float]:
    """Return the result of ``evaluate(jitter)`` for the first jitter that works, and that jitter.

    Args:
        who: Name of the model, for messages.
        dtype: Determines the size of rounding errors.
        evaluate: Adds jitter times the mean of the diagonal to the diagonal, and factorises. It is called
            with 0 first, and after each ``NotPositiveDefiniteError`` with a larger jitter.

    Returns:
        The result, and the jitter it took, relative to the mean of the diagonal.

    Raises:
        NotPositiveDefiniteError: The largest jitter did not suffice.

    Warns:
        JitterWarning: Jitter was added.
    """
    for jitter in _iterate_jitters(dtype):
        try:
            result = evaluate(jitter)
        except _exceptions.NotPositiveDefiniteError as error:
            failure = error
            continue
        if jitter:
            warnings.warn(
                f"{who}: the covariance matrix is not positive definite in {dtype}; {jitter:.1e} of the "
                f"mean of its diagonal was added to the diagonal.",
                _exceptions.JitterWarning,
                stacklevel=3,
            )
        return result, jitter
    raise _exceptions.NotPositiveDefiniteError(
        f"{who}: the covariance matrix is not positive definite, also with {jitter:.0e} of the mean of its "
        f"diagonal added: more than rounding errors explain. Is the kernel positive semi-definite?",
        failure.item,
        failure.minor,
    ) from failure


def factorise_with_jitter(who: str, A: Tensor) -> tuple[Tensor, float]:
    """Return the Cholesky factor of ``A`` (*batch, n, n), with jitter if it is needed, and that jitter.

    The gradient is that of the factor of A + jitter · mean(diag A) · I.
    """
    return retry_with_jitter(who, A.dtype, lambda jitter: potrf(add_jitter(A, jitter)))


def add_jitter(A: Tensor, jitter: float) -> Tensor:
    """Return A + jitter · mean(diag A) · I; A itself if the jitter is 0."""
    if not jitter:
        return A
    return add_to_diagonal(A, jitter * A.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True))


def _iterate_jitters(dtype: torch.dtype) -> Iterator[float]:
    yield 0.0
    jitter, largest = _FIRST * torch.finfo(dtype).eps, _LARGEST[dtype]
    while jitter < largest:
        yield jitter
        jitter *= _GROWTH
    yield largest
