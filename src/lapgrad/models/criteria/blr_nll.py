"""blr_nll: the negative log marginal likelihood of Bayesian linear regression."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad._torch.layout import broadcast_batch, check_matrix, check_same_kind
from lapgrad.models._linear.ridge import METHODS, Method, compute_factor, solve_ridge
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.trsm import trsm

_LOG_2_PI = math.log(2.0 * math.pi)


def blr_nll(
    X: Tensor,
    y: Tensor,
    noise_var: Tensor | float,
    prior_var: Tensor | float,
    *,
    method: Method = "lq",
) -> Tensor:
    """Criterion of Bayesian linear regression: s = -log N(y | 0, X diag(prior_var) X^T + noise_var I).

    The model: y = X w + noise, w ~ N(0, diag(prior_var)), noise ~ N(0, noise_var I); s is the negative log
    likelihood of y with w integrated out. Leading dimensions broadcast. It has derivatives of any order, also
    in X, so that the parameters of features can be learned.

    Args:
        X: (*batch, n, d), the features of n observations, in rows.
        y: (*batch, n), or (*batch, n, k) when it has as many dimensions as X or more: k independent targets
            with the same variances, each with weights of its own; their terms are added up.
        noise_var: A positive number, or (*batch): the variance of the noise.
        prior_var: A positive number, or (*batch, d) or (*batch, 1): the prior variance of each weight, or of
            all of them.
        method: "lq" factorises [I, A], A = (diag(prior_var) / noise_var)^(1/2) X^T, and never forms products
            of features. "cholesky" factorises I + A A^T, which squares the condition number, in half the time
            or less of the factorisation (with few features both take the same time).

    Returns:
        s, (*batch).

    Raises:
        OptionError: ``method`` is unknown, or a variance given as a number is not positive.
        NonFiniteError: X has a NaN or an infinity, or a variance is not positive.
        NotPositiveDefiniteError: With "cholesky", I + A A^T is singular up to rounding.
        RankDeficientError: In backward, with "lq": features depend on each other so closely, and the noise is
            so small, that the prior is lost in rounding.
        DTypeError, DeviceError, ShapeError, SizeError: The arguments are not float32 or float64 tensors that
            fit.

    Gradient:
        By the gradients of its operators: gelqf, or syrk and potrf, and triangular solves.

    Memory:
        A and with "lq" [I, A] and its Q: three matrices of the size of X.

    Cost:
        For n >= d: 4 d^2 n flops with "lq", d^2 n with "cholesky", and as much again in backward. For n < d
        the roles of n and d are exchanged.

    Example:
        >>> import torch
        >>> from lapgrad.models import blr_nll
        >>> X, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0])
        >>> blr_nll(X, y, noise_var=1.0, prior_var=1.0)
        tensor(3.6504)
    """
    A, Y, noise = scale_problem("blr_nll", X, y, noise_var, prior_var, method)
    n, k = Y.shape[-2:]
    if A.shape[-2] <= n:
        L, _, square = solve_ridge("blr_nll", A, Y, method)
    else:
        # L L^T = I + A^T A, n x n.
        L = compute_factor("blr_nll", A.mT, method)
        square = trsm(L, Y).square().sum((-2, -1))
    return k * sumlogdiag(L) + 0.5 * (square + n * k * (noise.log() + _LOG_2_PI))


class UnitProblem(NamedTuple):
    """A regression scaled to unit variances: Y = A^T w + N(0, I), w ~ N(0, I).

    Attributes:
        A: (*batch, d, n).
        Y: (*batch, n, k).
        noise_var: (*batch), or a scalar.
    """

    A: Tensor
    Y: Tensor
    noise_var: Tensor


def scale_problem(
    function: str,
    X: Tensor,
    y: Tensor,
    noise_var: Tensor | float,
    prior_var: Tensor | float,
    method: str,
) -> UnitProblem:
    """Check the arguments, and return the problem scaled to unit variances."""
    if method not in METHODS:
        raise _errors.unknown_option(function, "method", method, METHODS)
    X = check_matrix(function, "X", X)
    Y = check_matrix(function, "y", y.unsqueeze(-1) if isinstance(y, Tensor) and y.dim() < X.dim() else y)
    if Y.shape[-2] != X.shape[-2]:
        wanted = "y must have as many entries (or rows) as X has rows"
        raise _errors.shapes_do_not_fit(function, {"X": X, "y": y}, wanted)
    noise, prior = (
        _check_variance(function, name, value, X)
        for name, value in (("noise_var", noise_var), ("prior_var", prior_var))
    )
    check_same_kind(function, X=X, y=Y, noise_var=noise, prior_var=prior)
    if prior.dim() and prior.shape[-1] not in (1, X.shape[-1]):
        wanted = "prior_var must be a scalar, or its last dimension 1 or the number of columns of X"
        raise _errors.shapes_do_not_fit(function, {"X": X, "prior_var": prior}, wanted)
    noise_deviation = noise.sqrt()[..., None, None]
    weight_deviations = prior.sqrt()[..., None] if prior.dim() else prior.sqrt()[None, None]
    broadcast_batch(function, X=X, y=Y, noise_var=noise_deviation, prior_var=weight_deviations)
    return UnitProblem(weight_deviations / noise_deviation * X.mT, Y / noise_deviation, noise)


def _check_variance(function: str, argument: str, value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not 0 < value < math.inf:
        raise _exceptions.OptionError(f"{function}: {argument} must be positive and finite, got {value}.")
    return like.new_tensor(value)
