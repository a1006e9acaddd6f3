"""Mean functions of the layers of deep Gaussian processes: fixed linear maps.

A Gaussian process with mean zero and long lengthscales is nearly constant, and so is a chain of them. With a
linear map of full rank as its mean, a layer starts as that map and learns how to deviate from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lapgrad.linalg.pca import pca
from lapgrad.models._products import multiply


class LinearMean(nn.Module):
    """The linear function h W with a fixed matrix W (d, k)."""

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, H: Tensor) -> Tensor:
        """Return H W, (..., k) for H (..., d)."""
        return multiply(H, self.weights)


def make_linear_map(H: Tensor, width: int) -> nn.Module:
    """Return a linear map from d to ``width`` variables that preserves as much as possible.

    It is the identity if both numbers are equal, principal components if there are fewer outputs, and the
    inputs followed by zeros if there are more.

    Args:
        H: (n, d), the points to be mapped.
        width: Outputs.
    """
    d = H.shape[1]
    if width == d:
        return nn.Identity()
    weights = torch.eye(d, width, dtype=H.dtype, device=H.device)
    if width < d and len(H) > 1:
        directions = pca(H).components[:width]  # there are fewer if there are few points
        weights = torch.zeros_like(weights)
        weights[:, : len(directions)] = directions.mT
    return LinearMean(weights)
