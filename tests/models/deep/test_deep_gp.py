"""Deep Gaussian processes: the bound against its definition, minibatches, learning, files, bad input."""

from __future__ import annotations

import math

import pytest
import tolerances
import torch
from torch import Tensor, distributions, nn

from lapgrad import DTypeError, FileFormatError, FitError, NonFiniteError, OptionError, ShapeError
from lapgrad.models import DeepGP, GPRegression
from lapgrad.models._deep.latent_layer import fit_functions
from lapgrad.models.kernels import RBF
from lapgrad_bench.bench.models.torch_layers import replace_operators_by_torch

WIDTHS = [1, 2]


def draw_ring(n: int = 60, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points on a circle, bent in a third dimension, with noise: one latent variable is enough."""
    source = torch.Generator().manual_seed(0)
    angles = 6.3 * torch.rand(n, dtype=torch.float64, generator=source)
    points = torch.stack([angles.cos(), angles.sin(), (2.0 * angles).cos()], 1)
    noise = torch.randn(n, 3, dtype=torch.float64, generator=source)
    return (points + 0.05 * noise).to(dtype)


def make_small(Y: Tensor, widths: list[int] = WIDTHS, **options) -> DeepGP:
    return DeepGP(Y, widths, **{"inducing": 6, "hidden": [5], "generator": 0, **options})


def draw_noise(samples: int, n: int, widths: list[int] = WIDTHS, seed: int = 1) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(samples, n, w, dtype=torch.float64, generator=source) for w in reversed(widths)]


@pytest.mark.parametrize("widths", [[2], [1, 2], [1, 2, 3]])
@pytest.mark.parametrize("covariance", ["shared", "separate"])
def test_bound_is_that_of_the_definition(widths, covariance):
    """The bound equals its definition, written with torch.distributions for each row and each sample."""
    Y = draw_ring(4)
    model, noise = make_small(Y, widths, covariance=covariance), draw_noise(3, 4, widths)
    expected = torch.zeros((), dtype=torch.float64)
    for n in range(4):
        for s in range(3):
            lower = Y[n]
            for layer, eps in zip(model.layers, noise, strict=True):
                mean, log_variance = layer.recognition(lower)
                q = distributions.Normal(mean, log_variance.exp().sqrt())
                h = mean + log_variance.exp().sqrt() * eps[s, n]
                f, variance = layer.functions(h[None])
                p = distributions.Normal(f[0], layer.noise_var.sqrt())
                fit = p.log_prob(lower) - 0.5 * variance[0] / layer.noise_var
                expected = expected + (fit.sum() + q.entropy().sum()) / 3
                lower = h
            # E log p(h_L) = -KL(q || p) - entropy
            standard = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
            top = distributions.kl_divergence(q, standard) + q.entropy()
            expected = expected - top.sum() / 3
    divergences = sum(layer.functions.kl() for layer in model.layers)
    found = model.bound(Y, noise=noise, samples=3)
    tolerances.assert_close(found, expected - divergences)
    tolerances.assert_close(model.bound(Y, noise=noise, total=40), 10 * expected - divergences)


def test_mean_of_all_minibatches_is_the_bound_of_all_data():
    Y = draw_ring(12)
    model, noise = make_small(Y), draw_noise(2, 12)
    parts = [
        model.bound(Y[rows], total=12, noise=[eps[:, rows] for eps in noise])
        for rows in torch.arange(12).view(4, 3)
    ]
    tolerances.assert_close(torch.stack(parts).mean(), model.bound(Y, noise=noise))


@pytest.mark.parametrize("covariance", ["shared", "separate"])
def test_whitening_changes_parameters_and_nothing_else(covariance):
    Y, noise = draw_ring(), draw_noise(1, 60)
    one, other = (make_small(Y, whiten=whiten, covariance=covariance) for whiten in (True, False))
    tolerances.assert_close(one.bound(Y, noise=noise), other.bound(Y, noise=noise), tolerances.INDUCING)


def test_a_shared_covariance_is_one_that_all_outputs_have():
    Y, noise = draw_ring(), draw_noise(1, 60)
    one, other = (make_small(Y, covariance=covariance) for covariance in ("shared", "separate"))
    tolerances.assert_close(one.bound(Y, noise=noise), other.bound(Y, noise=noise))
    assert other.layers[0].functions.q_below.shape == (3, 6, 6)


@pytest.mark.parametrize("whiten", [True, False])
def test_gradients_of_the_bound(whiten):
    Y, noise = draw_ring(4), draw_noise(1, 4)
    model = make_small(Y, inducing=3, hidden=[2], whiten=whiten, jitter=1e-3)
    names, values = zip(*model.named_parameters(), strict=True)

    class Bound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return self.model.bound(Y, noise=noise, total=40)

    bound = Bound()

    def function(*parameters: Tensor) -> Tensor:
        named = {f"model.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(bound, named, ())

    assert torch.autograd.gradcheck(function, values, fast_mode=True)


def test_latent_weight_leaves_the_fit_and_the_inducing_variables():
    Y, noise = draw_ring(5), draw_noise(1, 5)
    model = make_small(Y)
    values = torch.stack([model.bound(Y, noise=noise, latent_weight=weight) for weight in (0.0, 0.5, 1.0)])
    tolerances.assert_close(values[1], 0.5 * (values[0] + values[2]))
    layer = model.layers[0]
    mean, log_variance = layer.recognition(Y)
    H = mean + (0.5 * log_variance).exp() * noise[0]
    fit = layer.compute_expected_log_density(Y, H, layer.functions.prepare()).sum()
    divergences = sum(layer.functions.kl() for layer in model.layers)
    tolerances.assert_close(values[0], fit - divergences)


def test_torch_linalg_gives_the_same_bound():
    Y, noise = draw_ring(), draw_noise(1, 60)
    model = make_small(Y)
    with replace_operators_by_torch():
        theirs = model.bound(Y, noise=noise)
    tolerances.assert_close(model.bound(Y, noise=noise), theirs)


def test_q_starts_at_the_best_one():
    """No small change of q(u) raises the bound, with the latent variables at their means."""
    Y = draw_ring()
    model = make_small(Y, [2], noise_var=0.3)
    layer = model.layers[0]
    H = layer.recognition(Y)[0].detach()
    bound = layer.compute_expected_log_density(Y, H, layer.functions.prepare()).sum() - layer.functions.kl()
    of_q = [value for name, value in layer.functions.named_parameters() if name.startswith("q_")]
    largest = max(float(gradient.abs().max()) for gradient in torch.autograd.grad(bound, of_q))
    assert largest < tolerances.INDUCING * torch.finfo(torch.float64).eps * abs(bound.item())


def test_natural_gradients_of_all_data_reach_the_best_q():
    """One step of length 1 with all data reaches the same q(u) as many short steps with minibatches."""
    Y = draw_ring()
    model, other = make_small(Y, [2]), make_small(Y, [2])
    for each in (model, other):
        for name, value in each.named_parameters():
            value.requires_grad_(".q_" in name or "linear.bias" in name)  # Adam needs at least one parameter
        each.layers[0].functions.set_posterior(torch.zeros(6, 3), torch.eye(6))
    # Only q(u) moves: Adam, which moves the rest, has a tiny learning rate.
    model.fit(Y, steps=400, batch=20, lr=1e-12, natural=0.3, final_lr=0.05, generator=0)
    bound = model.bound(Y, noise=draw_noise(50, 60, [2]))
    layer = other.layers[0]
    mean, log_variance = layer.recognition(Y)
    H = (mean + (0.5 * log_variance).exp() * draw_noise(50, 60, [2])[0]).flatten(0, 1).detach()
    targets = (Y - layer.functions.mean.constant).expand(50, 60, 3).flatten(0, 1).detach()
    fit_functions(layer.functions, H, targets, layer.noise_var.detach(), 1.0 / 50)
    best = other.bound(Y, noise=draw_noise(50, 60, [2]))
    assert best - 1.0 < bound < best


def test_natural_gradients_do_not_depend_on_whitening():
    """Natural gradients move the distribution q(u) alike in either parametrisation."""
    Y, noise = draw_ring(), draw_noise(1, 60)
    bounds = []
    for whiten in (True, False):
        model = make_small(Y, whiten=whiten)
        model.fit(Y, steps=3, batch=30, lr=1e-12, natural=0.2, generator=0)
        bounds.append(model.bound(Y, noise=noise))
    assert bounds[0] != make_small(Y).bound(Y, noise=noise)
    tolerances.assert_close(bounds[1], bounds[0], tolerances.INDUCING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learning(dtype):
    """A bent circle in three dimensions: a latent variable, found without supervision."""
    Y = draw_ring(300, dtype)
    model = make_small(Y, inducing=10, hidden=[20])
    before = model.log_likelihood(draw_ring(100, dtype), samples=50, generator=0).mean
    losses: list[float] = []
    result = model.fit(
        Y, steps=80, batch=50, lr=2e-2, every=20, generator=0, callback=lambda _, loss: losses.append(loss)
    )
    assert losses == result.history
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.5
    assert result.steps == 80
    assert all(value.isfinite().all() for value in model.parameters())
    test = model.log_likelihood(draw_ring(100, dtype), samples=50, generator=0)
    assert test.mean > before + 0.3
    assert test.mean > -losses[-1]
    assert test.values.dtype == torch.float64


@pytest.mark.parametrize("natural", [0.1, 0.0])
def test_a_fit_that_is_taken_up_again_is_the_same_fit(natural):
    Y = draw_ring()
    whole, halves = make_small(Y), make_small(Y)
    options = {"steps": 20, "batch": 25, "every": 5, "natural": natural}
    whole.fit(Y, **options, generator=3)
    halves.fit(Y, **options, generator=3, callback=lambda step, _: step == 10)
    again = make_small(Y)
    again.load_state_dict(halves.state_dict())
    again.fit(Y, **options, resume=halves.training_state())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_learning_that_fails_keeps_the_last_good_parameters():
    Y = draw_ring()
    model = make_small(Y)
    before: list[dict[str, Tensor]] = []

    def spoil(step: int, _: float) -> None:
        before.append({name: value.clone() for name, value in model.state_dict().items()})
        if step == 10:
            with torch.no_grad():
                model.layers[0].recognition.linear.weight.fill_(torch.nan)

    with pytest.raises(FitError, match=r"NaN or infinity.*smaller lr"):
        model.fit(Y, steps=40, batch=20, every=5, generator=0, callback=spoil)
    kept = model.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in before[-1].items())


def test_answers_have_their_shapes():
    Y = draw_ring()
    model = make_small(Y, [1, 2, 4])  # more latent variables than data have dimensions
    assert model.embed(Y).shape == (60, 1)
    assert model.embed(Y, layer=-1).shape == (60, 4)
    assert model.reconstruct(Y, layer=0).shape == (60, 3)
    assert model.sample(7, generator=0).shape == (7, 3)
    assert model.sample(0).shape == (0, 3)
    assert torch.equal(model.sample(7, generator=0), model.sample(7, generator=0))
    assert not torch.equal(model.sample(7, generator=0), model.sample(7, noise=True, generator=0))
    assert "widths=[1, 2, 4]" in repr(model)


def test_samples_are_those_of_the_model():
    """The spread of many samples with noise is that of the layer: its functions over N(0, I), and noise."""
    Y = draw_ring()
    model = make_small(Y, [2])
    layer = model.layers[0]
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        mean, variance = layer.functions(torch.randn(20000, 2, dtype=torch.float64, generator=source))
        expected = mean.var(0) + variance.mean(0) + layer.noise_var
    found = model.sample(20000, noise=True, generator=1).var(0)
    # Variances of 20000 samples have errors of 1 to 2 %.
    assert ((found / expected - 1.0).abs() < 0.08).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files(tmp_path, dtype):
    Y = draw_ring(dtype=dtype)
    model = make_small(Y, covariance="separate", whiten=False)
    model.fit(Y, steps=3, batch=20, generator=0)
    model.fix("layers.0.noise_var")
    model.save(tmp_path / "model.pt")
    again = DeepGP.load(tmp_path / "model.pt")
    assert torch.equal(model.reconstruct(Y), again.reconstruct(Y))
    assert torch.equal(model.sample(5, generator=0), again.sample(5, generator=0))
    one, other = (each.log_likelihood(Y, samples=3, generator=0).values for each in (model, again))
    assert torch.equal(one, other)
    assert not again.layers[0].raw_noise_var.requires_grad
    again.fit(Y, steps=3, batch=20, generator=0)
    with pytest.raises(FileFormatError, match="class DeepGP"):
        GPRegression.load(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": []}, "widths"),
        ({"widths": [2, 0]}, "widths"),
        ({"hidden": [-1]}, "hidden"),
        ({"inducing": 0}, "inducing"),
        ({"kernels": [RBF()]}, "1 kernels for 2 layers"),
        ({"noise_var": math.inf}, "noise_var"),
        ({"covariance": "full"}, "covariance"),
        ({"generator": "seed"}, "generator"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        DeepGP(draw_ring(), **{"widths": WIDTHS, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "steps, epochs or seconds"),
        ({"steps": 1, "epochs": 1}, "two names of one limit"),
        ({"steps": 0}, "steps must be positive"),
        ({"steps": 1, "batch": -1}, "batch must be positive"),
        ({"steps": 1, "final_lr": 2.0}, "final_lr"),
        ({"steps": 1, "samples": 0}, "samples"),
        ({"steps": 1, "annealing": -1}, "annealing"),
        ({"steps": 1, "natural": 1.0}, "natural"),
    ],
)
def test_bad_options_of_fit_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        make_small(draw_ring()).fit(draw_ring(), **options)


def test_bad_data_are_named():
    Y = draw_ring()
    model = make_small(Y)
    with pytest.raises(NonFiniteError, match="row 3"):
        make_small(Y.index_fill(0, torch.tensor([3]), torch.nan))
    with pytest.raises(DTypeError, match="float32"):
        model.fit(Y.float(), steps=1)
    with pytest.raises(ShapeError, match="3 columns"):
        model.embed(Y[:, :2])
    with pytest.raises(OptionError, match="layer must be an index"):
        model.embed(Y, layer=2)
    with pytest.raises(OptionError, match="count"):
        model.sample(-1)
    with pytest.raises(OptionError, match="samples and chunk"):
        model.log_likelihood(Y, samples=0)
    with pytest.raises(OptionError, match="fit has not been called"):
        model.training_state()
    model.fit(Y, steps=1, batch=10)
    with pytest.raises(OptionError, match="60 rows, Y has 20"):
        model.fit(Y[:20], steps=1, resume=model.training_state())
    state = model.training_state()
    for name in state:
        lacking = {key: value for key, value in state.items() if key != name}
        for wrong in (lacking, {**lacking, name: "something else"}):
            with pytest.raises(OptionError, match=f"missing entry '{name}'"):
                model.fit(Y, steps=1, resume=wrong)
    with pytest.raises(OptionError, match="resume must be what training_state has returned"):
        model.fit(Y, steps=1, resume=[])


def test_epochs_and_seconds():
    Y = draw_ring()
    model = make_small(Y)
    assert model.fit(Y, epochs=2, batch=25).steps == 6
    result = model.fit(Y, seconds=0.05, every=1, batch=25)
    assert result.reason == "0.05 seconds have passed"
    with pytest.raises(OptionError, match="nothing to fit"):
        model.requires_grad_(False).fit(Y, steps=1)


def test_constant_data():
    """Columns without variance do not lead to a division by zero."""
    model = make_small(torch.ones(20, 3, dtype=torch.float64))
    model.fit(torch.ones(20, 3, dtype=torch.float64), steps=3, batch=10)
    assert model.bound(torch.ones(20, 3, dtype=torch.float64)).isfinite()
