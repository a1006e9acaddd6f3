"""covariance: matrices of stationary covariance functions and their gradients, on the compiled core."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cpu._operands import count_items
from lapgrad._kernels.native import core

#: The order of ``Profile`` in csrc/base/isa.h.
_PROFILES = ("Rbf", "Matern12", "Matern32", "Matern52")
_MOST_DIMENSIONS = 48
"""With more dimensions a matrix product computes distances faster than differences do."""


def serves_covariance(profile: str, F: Tensor) -> bool:
    """Whether there is a kernel for this function of squared distances and points F (*batch, n, d)."""
    return profile in _PROFILES and 0 < F.shape[-1] <= _MOST_DIMENSIONS


def covariance(K: Tensor, profile: str, variance: Tensor, F: Tensor, G: Tensor | None) -> None:
    """K := variance · phi(|f - g|²); G None: of F with itself. All are contiguous."""
    core.covariance(
        K.element_size(), _PROFILES.index(profile), variance.data_ptr(), int(variance.numel() > 1),
        F.data_ptr(), 0 if G is None else G.data_ptr(), K.data_ptr(),
        count_items(K), *K.shape[-2:], F.shape[-1],
    )  # fmt: skip


def covariance_vjp(
    of_variance: Tensor,
    of_F: Tensor,
    of_G: Tensor | None,
    profile: str,
    variance: Tensor,
    F: Tensor,
    G: Tensor | None,
    gK: Tensor,
) -> None:
    """Overwrite the gradients of <gK, K>; of_variance has one number per item. All are contiguous."""
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in (F, G, gK, of_F, of_G, of_variance))
    core.covariance_vjp(
        gK.element_size(), _PROFILES.index(profile), variance.data_ptr(), int(variance.numel() > 1),
        *addresses, count_items(gK), *gK.shape[-2:], F.shape[-1],
    )  # fmt: skip
