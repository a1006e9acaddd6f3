"""The collapsed bound of a sparse Gaussian process in differentiable operators, from kernel matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad._torch.private import skips_dispatcher
from lapgrad._torch.synchronisation import may_read
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.potrf import potrf
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

LOG_2_PI = math.log(2.0 * math.pi)


def check_noise_variance(operator: str, value: Tensor | float, like: Tensor) -> Tensor:
    """``value`` as a tensor of the dtype and device of ``like``; raises if it is not positive."""
    value = convert_noise_variance(operator, value, like)
    check_noise_is_positive(operator, value)
    return value


def convert_noise_variance(operator: str, value: Tensor | float, like: Tensor) -> Tensor:
    """``value`` as a tensor of the dtype and device of ``like``."""
    if not isinstance(value, Tensor):
        value = like.new_tensor(value)
    if value.dtype is not like.dtype:
        raise _errors.mixed_dtypes(operator, {"X": like, "noise_var": value})
    if value.device != like.device:
        raise _errors.mixed_devices(operator, {"X": like, "noise_var": value})
    return value


def check_noise_is_positive(operator: str, value: Tensor) -> None:
    """Raise if a number is not positive, where its value can be read without waiting."""
    if skips_dispatcher((value,)) and may_read(value) and not (value > 0).all():
        raise _exceptions.OptionError(
            f"{operator}: noise_var must be positive, got {value.detach().min().item():g}."
        )


def compute_bound(
    operator: str, Kuu: Tensor, Kuf: Tensor, variances: Tensor, Y: Tensor, noise_var: Tensor
) -> Tensor:
    """-log N(Y | 0, Q + v I) + k / 2v (sum(variances) - tr Q), with Q = Kuf^T Kuu^-1 Kuf and v = noise_var.

    With Kuu = Lu Lu^T, B = Lu^-1 Kuf, M = I + B B^T / v = Lm Lm^T and c = Lm^-1 B Y / v:

        det(Q + v I) = v^n det(M),   tr(Y^T (Q + v I)^-1 Y) = |Y|^2 / v - |c|^2,   tr Q = |B|^2

    Args:
        operator: The name in messages.
        Kuu: (*batch, U, U), positive definite; the lower triangle is read.
        Kuf: (*batch, U, n).
        variances: (*batch), the sum of the diagonal of K_ff.
        Y: (*batch, n, k).
        noise_var: (*batch).
    """
    n, k = Y.shape[-2:]
    v = noise_var[..., None, None]
    B = trsm(_factorise(operator, "Kuu", Kuu), Kuf)
    W = syrk(B)
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    Lm = _factorise(operator, "I + Kuf^T Kuu^-1 Kuf / noise_var", identity + W / v)
    c = trsm(Lm, gemm2(B, Y)) / v
    squares = Y.square().sum((-2, -1)) / noise_var - c.square().sum((-2, -1))
    determinant = n * (LOG_2_PI + noise_var.log()) + 2.0 * sumlogdiag(Lm)
    unexplained = (variances - W.diagonal(dim1=-2, dim2=-1).sum(-1)) / noise_var
    return 0.5 * (squares + k * (determinant + unexplained))


def _factorise(operator: str, name: str, A: Tensor) -> Tensor:
    """Return the Cholesky factor of A; errors name ``operator``, and A as ``name``."""
    try:
        return potrf(A)
    except (_exceptions.NotPositiveDefiniteError, _exceptions.NonFiniteError) as error:
        raise _errors.restate_failure(operator, name, error) from None
