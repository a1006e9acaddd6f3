"""Mean functions of the layers of deep Gaussian processes: fixed linear maps.

A Gaussian process around zero forgets its inputs where its lengthscales are long, and a chain of them becomes
a constant map. Around a linear map of full rank a layer starts as that map, and learns how to depart from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lapgrad.linalg.pca import pca
from lapgrad.models._products import multiply


class LinearMean(nn.Module):
    """h W with a fixed matrix W (d, k)."""

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, H: Tensor) -> Tensor:
        """(..., k) for H (..., d)."""
        return multiply(H, self.weights)


def make_linear_map(H: Tensor, width: int) -> nn.Module:
    """A map from d to ``width`` variables that loses as little as possible.

    The identity where both are the same number; the principal components where there are fewer outputs; zeros
    beside the inputs where there are more.

    Args:
        H: (n, d), the points to be mapped.
        width: Outputs.
    """
    d = H.shape[1]
    if width == d:
        return nn.Identity()
    weights = torch.eye(d, width, dtype=H.dtype, device=H.device)
    if width < d and len(H) > 1:
        directions = pca(H).components[:width]  # fewer than that, of fewer points
        weights = torch.zeros_like(weights)
        weights[:, : len(directions)] = directions.mT
    return LinearMean(weights)
