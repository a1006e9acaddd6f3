"""The bound of a deep Gaussian process, and the importance weights of its latent variables.

The lowest layer comes first: ``layers[0]`` maps h_1 to the data, and ``layers[-1]`` maps the latent variables
h_L ~ N(0, I) at the top to those below. ``draw(shape)`` returns standard normal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lapgrad.distributed.group import Group
from lapgrad.models._deep.latent_layer import DeepLayer, fit_functions
from lapgrad.models._deep.sparse_layer import LayerFactors
from lapgrad.models._training.adam import AdamOptimizer, minimise_with_adam
from lapgrad.models._training.shares import BatchPart

_LOG_2_PI = math.log(2.0 * math.pi)
#: Initial learning rate of a refinement of q(h_1 | y); latent variables have a variance of about 1.
_REFINEMENT = 0.02

NormalSource = Callable[[tuple[int, ...]], Tensor]
#: Mean and log variance (b, w) of q(h_1 | y), in place of those of the recognition network.
LatentPosterior = tuple[Tensor, Tensor]


def prepare_layers(layers: Sequence[DeepLayer]) -> list[LayerFactors]:
    """Return the factorisations that a step needs, one per layer."""
    return [layer.functions.prepare() for layer in layers]


def estimate_bound(
    layers: Sequence[DeepLayer],
    Y: Tensor,
    total: int,
    noise: Sequence[Tensor],
    latent_weight: float | Tensor,
    first: LatentPosterior | None = None,
    part: BatchPart | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Return an estimate of the bound of the log density of ``total`` data, from a minibatch.

        total / b · Σ_n [Σ_l E log N(h_(l-1) | f_l(h_l), noise_l) + log p(h_L) - log q(h | y_n)] - Σ_l KL_l

    Args:
        layers: The layers of the model, the lowest one first.
        Y: (b, D), a minibatch.
        total: How many data there are.
        noise: (samples, b, w) standard normal numbers per layer.
        latent_weight: Weight of all terms except the fit to the data and the divergences KL_l of q(u_l).
        first: q(h_1 | y); None: that of the recognition network.
        part: The weight of the rows, if other processes have rows of the minibatch, too. The sum over the
            processes is the bound.

    Returns:
        The bound, a scalar in float64; and the latent variables, (samples, b, w) per layer, as constants.
    """
    known, latent = prepare_layers(layers), list[Tensor]()
    lower, terms = Y, Y.new_zeros(())
    mean = log_variance = Y
    for level, layer in enumerate(layers):
        mean, log_variance = first if first and level == 0 else layer.recognition(lower)
        H = mean + (0.5 * log_variance).exp() * noise[level]
        fit = layer.compute_expected_log_density(lower, H, known[level])
        # The entropy of q(h_l | h_(l-1)), given h_(l-1).
        entropy = 0.5 * (log_variance.sum(-1) + mean.shape[-1] * (1.0 + _LOG_2_PI))
        terms = terms + (fit if level == 0 else latent_weight * fit) + latent_weight * entropy
        latent.append(H.detach())
        lower = H
    squares = (mean.square() + log_variance.exp()).sum(-1)  # of h_L, over q(h_L | h_(L-1))
    terms = terms - 0.5 * latent_weight * (squares + mean.shape[-1] * _LOG_2_PI)
    of_data = terms.to(torch.float64).mean(0).sum() * (total / len(Y) if part is None else part.weight)
    if part is not None and not part.is_first:
        return of_data, latent
    pairs = zip(layers, known, strict=True)
    divergences = sum(layer.functions.kl(factors).to(torch.float64) for layer, factors in pairs)
    return of_data - divergences, latent


def move_functions(
    layers: Sequence[DeepLayer],
    Y: Tensor,
    latent: Sequence[Tensor],
    total: int,
    rate: float | Tensor,
    latent_weight: float | Tensor,
    part: BatchPart | None = None,
    group: Group | None = None,
) -> None:
    """Move all q(u) one step along the natural gradient of the bound.

    Args:
        layers: The layers of the model, the lowest one first.
        Y: (b, D), the minibatch.
        latent: Its latent variables without a graph, (samples, b, w) per layer.
        total: How many data there are.
        rate: Length of the step, 0 to 1; less than 1 if it is a tensor, a scalar in float64.
        latent_weight: As in ``estimate_bound``.
        part: As in ``estimate_bound``.
        group: The processes that have parts of the minibatch.
    """
    samples = len(latent[0])
    lower = Y.expand(samples, *Y.shape)
    for level, (layer, H) in enumerate(zip(layers, latent, strict=True)):
        targets = lower if layer.functions.mean is None else (lower - layer.functions.mean(H)).detach()
        share = total / len(Y) if part is None else part.weight
        weight = share / samples * (1.0 if level == 0 else latent_weight)
        noise = layer.noise_var.detach()
        points, values = H.flatten(0, 1), targets.flatten(0, 1)
        fit_functions(layer.functions, points, values, noise, weight, rate, group)
        lower = H


def refine_posterior(
    layers: Sequence[DeepLayer], Y: Tensor, steps: int, samples: int, draw: NormalSource
) -> LatentPosterior:
    """Return q(h_1 | y) of each datum: that of the network, improved by ``steps`` of Adam on the bound.

    On new data the recognition network is less accurate than the functions. Importance sampling is
    unbiased with any q(h | y), and a better one needs fewer samples.
    """
    with torch.no_grad():
        mean, log_variance = (part.clone() for part in layers[0].recognition(Y))
    parameters = [mean.requires_grad_(), log_variance.requires_grad_()]
    widths = [layer.functions.inducing.shape[1] for layer in layers]

    def evaluate() -> tuple[Tensor, Sequence[Tensor]]:
        noise = [draw((samples, len(Y), width)) for width in widths]
        with torch.enable_grad():
            value, _ = estimate_bound(layers, Y, len(Y), noise, 1.0, (mean, log_variance))
            return value, torch.autograd.grad(-value, parameters)

    optimizer = AdamOptimizer(parameters, _REFINEMENT)
    minimise_with_adam(optimizer, evaluate, lambda step: _REFINEMENT * (1.0 - step / steps), steps=steps)
    return mean.detach(), log_variance.detach()


def compute_log_weights(
    layers: Sequence[DeepLayer],
    Y: Tensor,
    samples: int,
    known: Sequence[LayerFactors],
    draw: NormalSource,
    first: LatentPosterior | None = None,
) -> Tensor:
    """Return log p(y | h_1) + ... + log p(h_L) - log q(h | y) at samples of q: (samples, b)."""
    lower, total, H = Y, Y.new_zeros(()), Y
    for level, (layer, factors) in enumerate(zip(layers, known, strict=True)):
        mean, log_variance = first if first and level == 0 else layer.recognition(lower)
        noise = draw((samples, len(Y), mean.shape[-1]))
        H = mean + (0.5 * log_variance).exp() * noise
        of_q = -0.5 * (noise.square() + log_variance + _LOG_2_PI).sum(-1)
        total = total + layer.compute_log_density(lower, H, factors) - of_q
        lower = H
    return total - 0.5 * (H.square() + _LOG_2_PI).sum(-1)
