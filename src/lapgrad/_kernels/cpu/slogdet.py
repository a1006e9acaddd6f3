"""slogdet: sign and logarithm of a determinant, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu import _determinant


def slogdet(sign: Tensor, logabsdet: Tensor, LU: Tensor, pivots: Tensor, A: Tensor) -> tuple[int, int] | None:
    return _determinant.run(sign, logabsdet, LU, pivots, A)


def slogdet_vjp(gA: Tensor, A: Tensor, LU: Tensor, pivots: Tensor, weight: Tensor) -> tuple[int, int] | None:
    failure: tuple[int, int] | None = _determinant.run_vjp(gA, A, LU, pivots, weight, False)
    return failure
