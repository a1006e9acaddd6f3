"""The posterior of f at new inputs, from the Cholesky factor of the covariance of the observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.models._products import multiply
from lapgrad.models.kernels.base import Kernel
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm


class ExactPosterior(NamedTuple):
    """The factor L (n, n) of the covariance A of observations, and weights = A⁻¹ (y - mean), (n, k)."""

    L: Tensor
    weights: Tensor

    def project(self, kernel: Kernel, inputs: Tensor, X_new: Tensor, full_cov: bool) -> tuple[Tensor, Tensor]:
        """Return K*ᵀ A⁻¹ r (m, k), and K*ᵀ A⁻¹ K*: its diagonal (m,), or with ``full_cov`` the matrix (m, m).

        Args:
            kernel: Gives K* = kernel(inputs, X_new).
            inputs: (n, d), of the observations.
            X_new: (m, d).
            full_cov: Return the whole matrix.
        """
        cross = kernel(inputs, X_new)
        mean = multiply(cross.mT, self.weights)
        # The solve may overwrite the matrix, unless autograd has recorded it or its elements share memory.
        may_overwrite = not (torch.is_grad_enabled() and cross.requires_grad) and cross.is_contiguous()
        V = trsm(self.L, cross, overwrite=may_overwrite)
        return mean, syrk(V, transpose=True) if full_cov else V.square().sum(0)
