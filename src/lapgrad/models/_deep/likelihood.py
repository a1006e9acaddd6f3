"""The log density of data under a deep Gaussian process, by importance sampling in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad.models._deep import bound as _bound
from lapgrad.models._deep import importance as _importance
from lapgrad.models._deep.bound import NormalSource
from lapgrad.models._deep.importance import LogLikelihood
from lapgrad.models._deep.latent_layer import DeepLayer
from lapgrad.models._deep.sparse_layer import LayerFactors

#: Rows of data whose q(h_1 | y) are refined together.
_REFINED = 1000
#: Entries of the largest matrix of a chunk if ``chunk`` is None: 0.5 GB of float32 on a GPU.
_ENTRIES = {"cpu": 1 << 22}
_ENTRIES_ELSEWHERE = 1 << 27


def estimate_log_likelihood(
    layers: Sequence[DeepLayer],
    prepared: Sequence[LayerFactors],
    Y: Tensor,
    samples: int,
    refine: int,
    chunk: int | None,
    draw: NormalSource,
) -> LogLikelihood:
    """Return log p(y) of each row of Y (n, D), with estimates of its error.

    Args:
        layers: The layers of the model, the lowest one first.
        prepared: Their factorisations.
        Y: The data.
        samples: Samples of the latent variables per datum.
        refine: Steps of Adam on q(h_1 | y) of each datum before sampling.
        chunk: Pairs of datum and sample that are worked on at a time; None: by size.
        draw: Returns standard normal numbers of a shape.
    """
    if chunk is None:
        widths = [size for layer in layers for size in layer.functions.inducing.shape]
        entries = _ENTRIES.get(Y.device.type, _ENTRIES_ELSEWHERE)
        chunk = max(1, entries // max(Y.shape[1], *widths))
    at_once = min(samples, chunk)
    width = max(1, chunk // at_once)
    weights = _importance.WeightSums(len(Y), Y.device)
    if refine:
        parts = [_bound.refine_posterior(layers, part, refine, 4, draw) for part in Y.split(_REFINED)]
        means, log_variances = (torch.cat(both) for both in zip(*parts, strict=True))
    for begin in range(0, len(Y), width):
        rows = slice(begin, min(begin + width, len(Y)))
        first = (means[rows], log_variances[rows]) if refine else None
        for before in range(0, samples, at_once):
            count = min(at_once, samples - before)
            weights.add(rows, _bound.compute_log_weights(layers, Y[rows], count, prepared, draw, first))
    return weights.estimate(samples)
