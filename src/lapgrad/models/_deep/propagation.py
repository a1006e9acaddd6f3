"""Propagates samples through layers of Gaussian processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad.models._deep.sparse_layer import LayerFactors, SparseLayer


def draw_normals(
    samples: int, rows: int, widths: Sequence[int], like: Tensor, generator: torch.Generator | None
) -> list[Tensor]:
    """Return draws of N(0, 1), one tensor (samples, rows, width) for each of the widths."""
    return [
        torch.randn(samples, rows, width, dtype=like.dtype, device=like.device, generator=generator)
        for width in widths
    ]


def propagate_samples(
    layers: Sequence[SparseLayer], prepared: Sequence[LayerFactors], X: Tensor, normals: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return mean and variance (samples, n, k) of the last layer, given samples of the layers before it.

    A sample of a layer is f_l(h) = mean(h) + sqrt(variance(h)) e with e ~ N(0, 1), independent for each row:
    the bound and the predictions depend on the marginal distribution of each observation only.

    Args:
        layers: All layers.
        prepared: The result of ``prepare`` of each layer.
        X: (n, d).
        normals: e of each layer but the last, (samples, n, width), or (samples, 1, width) shared by the rows.
    """
    H = X[None]
    for layer, ready, e in zip(layers, prepared, normals, strict=False):
        mean, variance = layer(H, ready)
        # The square root has no gradient at 0.
        H = mean + variance.clamp_min(torch.finfo(X.dtype).eps).sqrt() * e
    mean, variance = layers[-1](H, prepared[-1])
    return mean, variance.expand_as(mean)
