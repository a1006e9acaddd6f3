"""The posterior of a sparse Gaussian process at new inputs.

With the sums of ``fused._sgp.statistics`` over the data, K_uu = Lu Lu^T, M = I + W / v = Lm Lm^T and
a = M^-1 b / v, the function at new inputs has

    mean = K_*u Lu^-T a,   covariance = K_** - A^T A + C^T C,   A = Lu^-1 K_u*,   C = Lm^-1 A

(the mean and covariance of the optimal distribution of the inducing variables, carried to the new inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.distributed.group import Group
from lapgrad.fused._sgp import reduction as _reduction
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.inverse_factor import Substitution
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.rows import Rows
from lapgrad.fused._sgp.statistics import ARITHMETIC
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm


class SparsePosterior(NamedTuple):
    """The distribution of the function given the data, in float64 and without a graph.

    Attributes:
        kernel: The kernel, with copies of its parameters.
        Z: (U, d), the inducing inputs.
        Lu: (U, U).
        Lm: (U, U).
        weights: (U, k), Lu^-T a: the mean is a weighted sum of kernels at the inducing inputs.
    """

    kernel: KernelFunction
    Z: Tensor
    Lu: Tensor
    Lm: Tensor
    weights: Tensor

    def predict(self, X: Tensor, full_cov: bool) -> tuple[Tensor, Tensor]:
        """Return mean (n, k) and variance (n,) or covariance (n, n) of the function at X (n, d), in float64.

        Differentiable with respect to X only.
        """
        X = X.to(ARITHMETIC)
        matrix, diagonal, parameters = self.kernel
        K = matrix(self.Z, X, *parameters)
        A = trsm(self.Lu, K)
        C = trsm(self.Lm, A)
        mean = K.mT @ self.weights
        if full_cov:
            # Passing the same tensor twice gives an exactly symmetric matrix.
            return mean, matrix(X, X, *parameters) - syrk(A, transpose=True) + syrk(C, transpose=True)
        variance = diagonal(X, *parameters) - A.square().sum(0) + C.square().sum(0)
        return mean, variance.clamp_min(0.0)  # below zero by rounding alone


def compute_posterior(
    who: str,
    kernel: KernelFunction,
    Z: Tensor,
    data: Rows,
    target_parameters: Sequence[Tensor],
    noise_var: Tensor,
    jitter: float,
    chunk: int | None,
    group: Group | None = None,
) -> SparsePosterior:
    """Return the posterior for inputs (n, d) and targets (n, k), by one pass over them."""
    group = group or Group()
    with torch.no_grad():
        Z, v = Z.detach().to(ARITHMETIC), noise_var.detach().to(ARITHMETIC)
        parameters = tuple(parameter.detach().to(ARITHMETIC) for parameter in kernel.parameters)
        kernel = KernelFunction(kernel.matrix, kernel.diagonal, parameters)
        targets = [parameter.detach().to(ARITHMETIC) for parameter in target_parameters]
        width = _statistics.choose_chunk_width(data.count, len(Z), chunk, Z.device)
        with group.expect_sum(_reduction.count_numbers(len(Z), data.outputs), Z.device) as pending:
            own = _statistics.gather(who, kernel, Z, data, jitter, width, target_parameters=targets)
            sums = _reduction.StatisticsSum(who, pending, own, data.count, group.size == 1).finish()
        Lm = potrf(torch.eye(len(Z), dtype=Z.dtype, device=Z.device) + sums.W / v)
        a = trsm(Lm, trsm(Lm, sums.b), transpose=True) / v
        assert isinstance(sums.whitening, Substitution)
        return SparsePosterior(kernel, Z, sums.whitening.Lu, Lm, sums.whitening.apply_transposed(a))
