"""Ridge regression with unit penalty, min_W |W|^2 + |Y - A^T W|^2: the core of Bayesian linear regression.

A is d x n: features of n observations, in columns, scaled by the deviation of the weights over that of the
noise.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.linalg import cho_solve
from lapgrad.ops.gelqf import gelqf
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

Method = Literal["lq", "cholesky"]

METHODS = ("lq", "cholesky")


class Ridge(NamedTuple):
    """The solution of the ridge regression.

    Attributes:
        L: (*batch, d, d), lower triangular, L L^T = I + A A^T. Its diagonal may be negative.
        W: (*batch, d, k), the minimiser.
        square: (*batch), the minimum, tr(Y^T (I + A^T A)^-1 Y).
    """

    L: Tensor
    W: Tensor
    square: Tensor


def solve_ridge(function: str, A: Tensor, Y: Tensor, method: str) -> Ridge:
    """Solve for the weights; A is (*batch, d, n), Y (*batch, n, k), the leading dimensions broadcast.

    The minimum is computed as a sum of squares, because |Y|^2 - |L^-1 A Y|^2 loses digits by cancellation.
    Near the minimum, errors of W change that sum by their squares only.
    """
    if method == "lq":
        # [I, A] = L Q: A = L Q2, and W = L^-T Q2 Y.
        Q, L = _factorise_lq(function, A)
        W = trsm(L, gemm2(Q[..., A.shape[-2] :], Y), transpose=True)
        residual = Y - gemm2(A, W, transpose_a=True)
    else:
        # The normal equations, followed by one step of iterative refinement with A itself.
        L = _factorise_cholesky(function, A)
        W = cho_solve(L, gemm2(A, Y))
        residual = Y - gemm2(A, W, transpose_a=True)
        W = W + cho_solve(L, gemm2(A, residual) - W)
        residual = Y - gemm2(A, W, transpose_a=True)
    return Ridge(L, W, W.square().sum((-2, -1)) + residual.square().sum((-2, -1)))


def compute_factor(function: str, A: Tensor, method: str) -> Tensor:
    """Return L with L L^T = I + A A^T."""
    return _factorise_lq(function, A)[1] if method == "lq" else _factorise_cholesky(function, A)


def _factorise_lq(function: str, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and L with [I, A] = L Q, without forming A A^T.

    Q is computed even where only L is needed, for the sake of the gradient. That of L alone would use
    L^-1 [I, A] for Q, and lose the digits that the LQ factorisation has preserved: with 16 powers of x
    (condition number 1e8) its error is 1e-3, and with Q 1e-10.
    """
    d = A.shape[-2]
    identity = torch.eye(d, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], d, d)
    try:
        Q, L = gelqf(torch.cat([identity, A], -1))
    except _exceptions.NonFiniteError as error:
        raise _make_non_finite_error(function, error) from None
    return Q, L


def _factorise_cholesky(function: str, A: Tensor) -> Tensor:
    identity = torch.eye(A.shape[-2], dtype=A.dtype, device=A.device)
    try:
        return potrf(syrk(A) + identity)
    except _exceptions.NonFiniteError as error:
        raise _make_non_finite_error(function, error) from None
    except _exceptions.NotPositiveDefiniteError as error:
        raise _exceptions.NotPositiveDefiniteError(
            f"{function}: the products of the features are singular up to rounding; take method='lq'.",
            error.item,
            error.minor,
        ) from None


def _make_non_finite_error(function: str, error: _exceptions.NonFiniteError) -> _exceptions.NonFiniteError:
    return _exceptions.NonFiniteError(
        f"{function}: the features, scaled by (prior_var / noise_var)^(1/2), contain NaN or infinity: "
        f"features must be finite, noise_var and prior_var positive.",
        error.item,
        error.pivot,
    )
