"""gp_nll: the criterion of Gaussian process regression."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.models import _checks
from lapgrad.models._gp.diagonal import add_to_diagonal


def gp_nll(K: Tensor, y: Tensor, noise_var: Tensor | float) -> Tensor:
    """Negative log marginal likelihood of a Gaussian process: -sum_j log N(y_j | 0, K + diag(noise_var)).

    Args:
        K: (*batch, n, n), the kernel matrix; symmetric, the lower triangle is read.
        y: (n,) or (*batch, n, k): k independent outputs, whose terms are added up. (*batch, n) with the
            batch of K is taken as one output per item.
        noise_var: Variance of the noise: a scalar, (n,) or (*batch, n) for one per observation.

    Returns:
        (*batch).

    Raises:
        NotPositiveDefiniteError: K + diag(noise_var) is not positive definite.
        NonFiniteError: A NaN or an infinity was met in it.
        DTypeError, DeviceError, ShapeError: The operands are not float32 or float64 tensors that fit.

    Example:
        >>> import torch
        >>> from lapgrad.models import gp_nll
        >>> gp_nll(torch.zeros(2, 2), torch.tensor([3.0, 4.0]), 1.0)
        tensor(14.3379)
    """
    for name, value in {"K": K, "y": y}.items():
        _checks.check_dense_tensor("gp_nll", value, name)
    if K.dim() < 2 or K.shape[-1] != K.shape[-2]:
        raise _errors.not_square("gp_nll", "K", K.shape)
    n = K.shape[-1]
    one_output = y.dim() == 1 or (y.dim() < K.dim() and y.shape == K.shape[:-1])
    Y = y[..., None] if one_output else y
    if Y.dim() < 2 or Y.shape[-2] != n:
        raise _errors.shapes_do_not_fit("gp_nll", {"K": K, "y": y}, f"y must have n = {n} rows")
    if not isinstance(noise_var, Tensor):
        noise_var = torch.as_tensor(noise_var, dtype=K.dtype, device=K.device)
    if noise_var.dim() and noise_var.shape[-1] not in (1, n):
        raise _errors.shapes_do_not_fit(
            "gp_nll", {"K": K, "noise_var": noise_var}, f"noise_var must be a scalar or have n = {n} entries"
        )
    # The sum is a new matrix, which the factorisation may overwrite.
    return mvn_nll(add_to_diagonal(K, noise_var), Y, overwrite=True)
