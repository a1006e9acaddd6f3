"""Importance sampling: on linear models, whose likelihood is known, and of weights by themselves."""

from __future__ import annotations

import math

import pytest
import tolerances
import torch
from torch import Tensor, distributions

from lapgrad.models import DeepGP
from lapgrad.models._deep.importance import WeightSums
from lapgrad.models.kernels import Linear

NOISE = 0.4


def draw_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_linear_model(maps: list[Tensor]) -> DeepGP:
    """Return a model with known linear functions: y = maps[0] h_1 + noise, h_1 = maps[1] h_2 + noise, ..."""
    widths = [W.shape[1] for W in reversed(maps)]
    D = maps[0].shape[0]
    kernels = [Linear() for _ in widths]
    model = DeepGP(
        draw_normal(30, D),
        widths,
        kernels=kernels,
        inducing=max(widths),
        hidden=[],
        jitter=1e-12,
        generator=0,
    )
    with torch.no_grad():
        for layer, W in zip(model.layers, maps, strict=True):
            w = W.shape[1]
            functions = layer.functions
            functions.raw_inducing.set_(torch.eye(w, dtype=torch.float64))
            functions.q_mean.set_(W.mT.clone())
            functions.q_log_deviations.set_(torch.full((w,), -20.0, dtype=torch.float64))
            functions.q_below.set_(torch.zeros(w, w, dtype=torch.float64))
            layer.noise_var = NOISE
            for part in (layer.recognition.linear, layer.recognition.network[-1]):
                part.weight.zero_()
                part.bias.zero_()
            layer.recognition.shift.zero_()
            layer.recognition.scale.fill_(1.0)
        model.layers[0].functions.mean.constant.zero_()
    return model


def compute_exact(maps: list[Tensor], Y: Tensor) -> Tensor:
    """Return log p(y) of each datum; y is normal."""
    covariance = torch.eye(maps[-1].shape[1], dtype=torch.float64)
    for W in reversed(maps):
        covariance = W @ covariance @ W.mT + NOISE * torch.eye(len(W), dtype=torch.float64)
    zero = torch.zeros(len(covariance), dtype=torch.float64)
    return distributions.MultivariateNormal(zero, covariance).log_prob(Y)


def set_exact_recognition(model: DeepGP, W: Tensor) -> None:
    """q(h | y) = p(h | y) = N(V Wᵀ y / noise, V), V = (I + Wᵀ W / noise)⁻¹, diagonal for such W."""
    V = 1.0 / (1.0 + W.square().sum(0) / NOISE)
    recognition = model.layers[0].recognition
    with torch.no_grad():
        recognition.linear.weight.copy_(V[:, None] * W.mT / NOISE)
        recognition.network[-1].bias[len(V) :].copy_(V.log())


def test_one_sample_is_enough_where_recognition_is_exact():
    W = torch.linalg.qr(draw_normal(5, 2))[0] * torch.tensor([2.0, 0.5], dtype=torch.float64)
    model, Y = make_linear_model([W]), draw_normal(6, 5, seed=1)
    set_exact_recognition(model, W)
    found = model.log_likelihood(Y, samples=3, generator=0)
    tolerances.assert_close(found.values, compute_exact([W], Y), tolerances.OF_EXACT_WEIGHTS)
    assert found.sampling_error < 1e-6
    tolerances.assert_close(
        found.effective_samples, torch.full_like(found.values, 3.0), tolerances.OF_EXACT_WEIGHTS
    )
    # With the exact q(h | y), the bound without KL(q(u) || p(u)) is the likelihood, for any samples.
    divergence = model.layers[0].functions.kl()
    bound = model.bound(Y, noise=[torch.zeros(1, 6, 2, dtype=torch.float64)])
    averaged = model.bound(Y, samples=4000, generator=torch.Generator().manual_seed(0)) + divergence
    assert abs(averaged.item() - found.values.sum().item()) < 0.5
    assert bound.isfinite()


@pytest.mark.parametrize("chunk", [None, 7, 900])
def test_linear_layers_with_other_recognition(chunk):
    """With an inexact q(h | y) the estimate is right up to its reported error, also if computed in chunks."""
    maps = [draw_normal(4, 2, seed=2), draw_normal(2, 1, seed=3)]
    model, Y = make_linear_model(maps), draw_normal(5, 4, seed=1)
    samples = 400 if chunk == 7 else 4000
    found = model.log_likelihood(Y, samples=samples, chunk=chunk, generator=0)
    expected = compute_exact(maps, Y)
    assert abs(found.mean - expected.mean().item()) < 4.0 * found.sampling_error
    assert 0.0 < found.sampling_error < 0.2
    assert (found.effective_samples > 5.0).all()
    assert found.standard_error == pytest.approx(found.values.std().item() / math.sqrt(5))
    # The bound is below.
    lower = model.bound(Y, samples=1000, generator=torch.Generator().manual_seed(0))
    divergences = sum(layer.functions.kl() for layer in model.layers)
    assert lower + divergences < expected.sum() + 1.0


def test_refinement_finds_the_posterior():
    """Refinement turns a q(h | y) that does not depend on y into one for which a few samples are enough."""
    W = torch.linalg.qr(draw_normal(5, 2))[0] * torch.tensor([2.0, 0.5], dtype=torch.float64)
    model, Y = make_linear_model([W]), draw_normal(6, 5, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rough, fine = (model.log_likelihood(Y, samples=50, refine=refine, generator=0) for refine in (0, 300))
    assert fine.effective_samples.mean() > 35.0
    assert rough.effective_samples.mean() < 30.0
    assert (fine.values - compute_exact([W], Y)).abs().max() < 0.3
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert all(value.grad is None for value in model.parameters())


def test_sums_of_weights_do_not_depend_on_the_order_of_chunks():
    """The log of a sum of weights that differ by hundreds of nats is the same in parts and at once."""
    logs = 300.0 * draw_normal(40, 3)
    weights = WeightSums(3, torch.device("cpu"))
    for part in logs.split(7):
        weights.add(slice(0, 2), part[:, :2])
        weights.add(slice(2, 3), part[:, 2:])
    found = weights.estimate(40)
    tolerances.assert_close(found.values, torch.logsumexp(logs, 0) - math.log(40.0))
    effective = (2.0 * torch.logsumexp(logs, 0) - torch.logsumexp(2.0 * logs, 0)).exp()
    tolerances.assert_close(found.effective_samples, effective, tolerances.HIGHER_ORDER)


def test_sampling_error_is_that_of_repeated_estimates():
    """The reported sampling error agrees with the spread of 400 estimates of 200 samples each."""
    logs = draw_normal(200, 400, seed=4)  # log-normal weights
    weights = WeightSums(400, torch.device("cpu"))
    weights.add(slice(0, 400), logs)
    found = weights.estimate(200)
    # Within the standard error of a mean of 400 independent values.
    assert found.sampling_error == pytest.approx(found.values.std().item() / math.sqrt(400), rel=0.15)
