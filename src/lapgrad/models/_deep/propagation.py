"""Samples on their way through layers of Gaussian processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad.models._deep.sparse_layer import LayerFactors, SparseLayer


def draw_normals(
    samples: int, rows: int, widths: Sequence[int], like: Tensor, generator: torch.Generator | None
) -> list[Tensor]:
    """Draws of N(0, 1) for layers of these widths, each (samples, rows, width)."""
    return [
        torch.randn(samples, rows, width, dtype=like.dtype, device=like.device, generator=generator)
        for width in widths
    ]


def propagate_samples(
    layers: Sequence[SparseLayer], prepared: Sequence[LayerFactors], X: Tensor, normals: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and variance (samples, n, k) of the last layer given samples of the others.

    Given the layer before it, each f_l(h) = mean(h) + sqrt(variance(h)) e with e ~ N(0, 1), independent for
    each row: in the bound, and in predictions, each observation stands alone.

    Args:
        layers: All of them.
        prepared: Of each layer.
        X: (n, d).
        normals: e of each layer but the last, (samples, n, width), or (samples, 1, width) shared by the rows.
    """
    H = X[None]
    for layer, ready, e in zip(layers, prepared, normals, strict=False):
        mean, variance = layer(H, ready)
        # A variance of 0 has no gradient.
        H = mean + variance.clamp_min(torch.finfo(X.dtype).eps).sqrt() * e
    mean, variance = layers[-1](H, prepared[-1])
    return mean, variance.expand_as(mean)
