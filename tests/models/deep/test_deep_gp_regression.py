"""DeepGPRegression: against the sparse process, dense formulas and its own samples."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import HIGHER_ORDER, OF_JITTER, assert_all_close, assert_close
from torch import Tensor

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.models import DeepGPRegression, SparseGPRegression, _sampling
from lapgrad.models.kernels import RBF, Matern52

DOUBLE = torch.float64


def make_data(
    n: int = 40, d: int = 1, k: int | None = None, dtype: torch.dtype = DOUBLE
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    X = 4.0 * torch.rand(n, d, dtype=DOUBLE, generator=generator)
    phases = torch.arange(1 if k is None else k, dtype=DOUBLE)
    y = torch.sin(X.sum(-1, keepdim=True) + phases)
    y = 2.0 + y + 0.1 * torch.randn(y.shape, dtype=DOUBLE, generator=generator)
    return X.to(dtype), (y[:, 0] if k is None else y).to(dtype)


def make_deep(n: int = 30, d: int = 2, k: int | None = None, **options: Any) -> DeepGPRegression:
    """Return a model of two layers with random q(u), so that no term of the bound vanishes."""
    dtype = options.pop("dtype", DOUBLE)
    X, y = make_data(n, d, k)
    model = DeepGPRegression(X, y, **{"inducing": 5, "generator": 0, "noise_var": 0.05, **options})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model._list_layers():
            for values in (layer.q_mean, layer.q_log_deviations, layer.q_below):
                values += 0.3 * torch.randn(values.shape, dtype=DOUBLE, generator=generator)
        model.layers[0].q_log_deviations.add_(3.0)
    return model.to(dtype)


FORMS = list(itertools.product((True, False), ("shared", "separate")))


@pytest.mark.parametrize(("whiten", "covariance"), FORMS)
@pytest.mark.parametrize("k", [None, 2])
def test_one_layer_starts_as_the_sparse_process(k: int | None, whiten: bool, covariance: Any) -> None:
    """At the best distribution of the inducing variables the bound is the collapsed one, and stationary."""
    X, y = make_data(60, 2, k)
    options: dict[str, Any] = {"inducing": 7, "generator": 3, "noise_var": 0.05, "normalise": True}
    sparse = SparseGPRegression(X, y, RBF(0.9, 1.2), mean="zero", **options)
    model = DeepGPRegression(X, y, RBF(0.9, 1.2), widths=(), whiten=whiten, covariance=covariance, **options)
    assert_close(model.loss(), sparse.loss(), HIGHER_ORDER)
    mean, variance = sparse.predict(X[:9] + 0.3)
    found = model.predict(X[:9] + 0.3)
    assert_close(found.mean, mean, OF_JITTER)
    assert_close(found.variance, variance if k is None else variance[:, None].expand_as(mean), OF_JITTER)
    layer = model._list_layers()[0]
    of_q = torch.autograd.grad(model.loss(), [layer.q_mean, layer.q_log_deviations, layer.q_below])
    worst = max(float(gradient.abs().max()) for gradient in of_q)
    assert worst < 1e-6 * sparse.loss().abs(), "no distribution is better"


def test_a_worse_distribution_has_a_worse_bound() -> None:
    X, y = make_data(60)
    model = DeepGPRegression(X, y, widths=(), inducing=7, generator=0)
    best = model.loss().item()
    for name in ("q_mean", "q_log_deviations", "q_below"):
        worse = DeepGPRegression(X, y, widths=(), inducing=7, generator=0)
        with torch.no_grad():
            getattr(worse.layers[0], name).add_(0.1)
        assert worse.loss().item() > best + 0.01


def compute_dense_loss(model: DeepGPRegression, samples: int, seed: int) -> Tensor:
    """The bound of a model with linear means written in full matrices, with the samples of ``loss``."""
    X = (model.X - model.x_shift) / model.x_scale
    y = (model.y - model.y_shift) / model.y_scale
    generator = torch.Generator().manual_seed(seed)
    draws = [
        torch.randn(samples, len(X), width, dtype=DOUBLE, generator=generator)
        for width in model.plan.widths[:-1]
    ]
    divergence, H = torch.zeros((), dtype=DOUBLE), X.expand(samples, *X.shape)
    for number, layer in enumerate(model._list_layers()):
        Z, U = layer.inducing, len(layer.inducing)
        Kuu = layer.kernel(Z) + layer.jitter * layer.kernel.diag(Z).mean() * torch.eye(U, dtype=DOUBLE)
        L = torch.linalg.cholesky(Kuu)
        root = layer.q_log_deviations.exp().diag() + layer.q_below.tril(-1)
        S, m = L @ root @ root.mT @ L.mT, L @ layer.q_mean
        prior = torch.distributions.MultivariateNormal(torch.zeros(U, dtype=DOUBLE), Kuu)
        for column in m.mT:
            q = torch.distributions.MultivariateNormal(column, S)
            divergence = divergence + torch.distributions.kl_divergence(q, prior)
        means, variances = [], []
        for sample in H:
            P = torch_lu.solve(Kuu, layer.kernel(Z, sample))
            means.append(P.mT @ m + (0.0 if layer.mean is None else layer.mean(sample)))
            variances.append((layer.kernel(sample) - P.mT @ (Kuu - S) @ P).diagonal()[:, None])
        mean, variance = torch.stack(means), torch.stack(variances)
        if number + 1 < len(model.layers):
            H = mean + variance.sqrt() * draws[number]
    noise = model.noise_var
    normal = torch.distributions.Normal(mean, noise.sqrt())
    of_data = (normal.log_prob(y) - 0.5 * variance / noise).mean(0).sum()
    return divergence - of_data + model.y.numel() * model.y_scale.log()


@pytest.mark.parametrize("widths", [(2,), (1, 3)], ids=str)
def test_loss_and_gradient_are_those_of_the_definition(widths: tuple[int, ...]) -> None:
    X, y = make_data(12, 2, 2)
    model = DeepGPRegression(X, y, widths=widths, inducing=4, noise_var=0.1, jitter=1e-4, generator=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model._list_layers():
            for values in (layer.q_mean, layer.q_below):
                values += 0.3 * torch.randn(values.shape, dtype=DOUBLE, generator=generator)
            layer.q_log_deviations.fill_(-1.0)
    found, expected = model.loss(samples=3, generator=5), compute_dense_loss(model, 3, 5)
    assert_close(found, expected, HIGHER_ORDER)
    parameters = list(model.parameters())
    assert_all_close(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), OF_JITTER
    )


def test_gradcheck() -> None:
    """Of the loss with its random numbers fixed, with respect to every parameter."""
    model = make_deep(8, 2, inducing=3, covariance="separate")
    names, values = zip(*model.named_parameters(), strict=True)

    def loss(*tensors: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(model, dict(zip(names, tensors, strict=True))):
            return model.loss(batch=5, generator=0)

    assert torch.autograd.gradcheck(loss, [value.detach().clone().requires_grad_() for value in values])


def test_minibatches_are_not_biased() -> None:
    """The average loss of minibatches that partition the data is the loss of all data."""
    X, y = make_data(40, 2)
    model = DeepGPRegression(X, y, widths=(), inducing=5, generator=0)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    losses = torch.stack([model._estimate_loss(rows, []) for rows in order.split(8)])
    assert losses.std() > 0
    assert_close(losses.mean(), model.loss())
    assert_close(model.loss(batch=40), model.loss())
    with torch.no_grad():
        drawn = torch.stack([model.loss(batch=3, generator=seed) for seed in range(200)])
    assert (drawn.mean() - model.loss()).abs() < 5.0 * drawn.std() / math.sqrt(200)


def test_samples_are_not_biased() -> None:
    """Losses of one sample average to that of many, up to five standard errors."""
    model = make_deep(12)
    with torch.no_grad():
        few = torch.stack([model.loss(generator=seed) for seed in range(100)])
        many = model.loss(samples=4000, generator=1000)
    assert few.std() > 0
    assert (few.mean() - many).abs() < 5.0 * few.std() / math.sqrt(90)


def test_prediction_is_the_mixture_over_samples() -> None:
    """Predictions agree with draws of functions, which pass through the layers jointly at all inputs."""
    model = make_deep(k=2, covariance="separate")
    new = model.X[:3] + 0.2
    mean, variance = model.predict(new, noise=True, samples=4000)
    draws = model.sample(new, 4000, noise=True, generator=3)
    assert torch.equal(draws, model.sample(new, 4000, noise=True, generator=3))
    assert draws.shape == (4000, 3, 2)
    error = 5.0 / math.sqrt(2000)  # five standard errors of the difference of two averages
    assert ((draws.mean(0) - mean).abs() < error * variance.sqrt()).all()
    assert ((draws.var(0) - variance).abs() < 3.0 * error * variance).all()
    assert_close(
        variance - model.predict(new, samples=4000).variance,
        (model.noise_var * model.y_scale.square()).expand_as(variance),
        HIGHER_ORDER,
    )


def test_draws_are_functions() -> None:
    """Two inputs next to each other have almost the same value in every draw, the mixture spreads."""
    model = make_deep(d=1)
    new = torch.tensor([1.0, 1.0 + 1e-6], dtype=DOUBLE)
    draws = model.sample(new, 50, generator=0)
    assert draws.shape == (50, 2)
    assert (draws[:, 0] - draws[:, 1]).abs().max() < 1e-2 * draws[:, 0].std()
    assert model.sample(new, 0).shape == (0, 2)


def test_chunks_change_nothing() -> None:
    model = make_deep()
    new, y_new = make_data(23, 2)
    expected, density = model.predict(new), model.log_prob(new, y_new)
    for chunk in (1, 5, 100):
        assert_all_close(tuple(model.predict(new, chunk=chunk)), tuple(expected))
        assert_close(model.log_prob(new, y_new, chunk=chunk), density)
    assert model.predict(new[:0]).mean.shape == (0,)
    assert model.log_prob(new[:0], y_new[:0]).shape == (0,)
    assert torch.equal(model.predict(new).mean, expected.mean), "the same random numbers in every call"
    assert not torch.equal(model.predict(new, generator=None).mean, expected.mean)


def test_log_prob_is_the_log_of_an_average() -> None:
    model = make_deep(k=2)
    new, y_new = make_data(6, 2, 2)
    parts = model._predict_parts("predict", new, 50, None, 0)
    mean, variance = parts[0]
    normal = torch.distributions.Normal(
        mean * model.y_scale + model.y_shift, (variance + model.noise_var).sqrt() * model.y_scale
    )
    each = normal.log_prob(y_new).detach()
    assert_close(model.log_prob(new, y_new, samples=50), each.exp().mean(0).log())
    together = each.sum(-1).exp().mean(0).log()
    assert_close(model.log_prob(new, y_new, samples=50, joint=True), together)
    # Outputs that share a sample are not independent.
    assert (model.log_prob(new, y_new, samples=50).sum(-1) - together).abs().max() > 1e-3


def test_gradient_of_a_prediction_is_that_of_the_inputs() -> None:
    model = make_deep()
    new = model.X[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda new: tuple(model.predict(new, samples=3)), (new,))
    assert not any(part.requires_grad for part in model.predict(model.X[:3]))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("mean", ["linear", "zero"])
@pytest.mark.parametrize("widths", [(3,), (2, 4), (5,)], ids=str)
def test_inner_layers_start_as_linear_maps(mean: str, widths: tuple[int, ...]) -> None:
    X, y = make_data(30, 3)
    model = DeepGPRegression(X, y, widths=widths, mean=mean, inducing=8, generator=0)
    H = (X - model.x_shift) / model.x_scale
    Z = model._list_layers()[0].inducing
    for layer in model._list_layers()[:-1]:
        found, variance = layer(Z)
        _, directions = torch.linalg.eigh(H.T.cov() if H.shape[1] > 1 else torch.ones(1, 1, dtype=DOUBLE))
        if layer.outputs < H.shape[1]:  # up to signs
            expected = (Z @ directions.flip(1)[:, : layer.outputs]).abs()
            H = H @ torch.linalg.lstsq(Z, found).solution
        else:
            expected = torch.nn.functional.pad(Z, (0, layer.outputs - Z.shape[1])).abs()
            H = torch.nn.functional.pad(H, (0, layer.outputs - H.shape[1]))
        assert (found.abs() - expected).abs().max() < 1e-2  # of jitter, with a mean of zero
        assert variance.max() < 1e-2
        Z = found
    assert_close(model._list_layers()[-1].inducing, Z, OF_JITTER if mean == "linear" else math.inf)


def test_depth_learns_a_step() -> None:
    """A jump that one stationary kernel cannot make: better than the sparse process, and reproducible."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 60, dtype=DOUBLE)
    y = x.sign() + 0.05 * torch.randn(60, dtype=DOUBLE, generator=generator)
    sparse = SparseGPRegression(x, y, inducing=10, normalise=True, generator=0)
    sparse.fit(steps=60)
    model = DeepGPRegression(x, y, inducing=10, generator=0)
    before = model.loss(samples=50, generator=0).item()
    result = model.fit(steps=150, lr=0.03, generator=0)
    after = model.loss(samples=50, generator=0).item()
    assert after < before - 50
    assert after < sparse.loss().item() - 10
    assert result.steps == 150
    new = x + 0.01
    assert model.log_prob(new, new.sign()).mean() > sparse.log_prob(new, new.sign()).mean()


def test_fits_are_reproducible() -> None:
    """Fits with equal seeds are equal, also if one is interrupted and resumed."""
    options: dict[str, Any] = {"batch": 7, "every": 2}
    first, second, third = make_deep(), make_deep(), make_deep()
    torch.manual_seed(0)
    one = first.fit(steps=8, generator=3, **options)
    torch.manual_seed(1)
    two = second.fit(steps=8, generator=torch.Generator().manual_seed(3), **options)
    assert one.history == two.history
    assert len(one.history) == 4
    assert_all_close(list(first.parameters()), list(second.parameters()), 0)
    third.fit(steps=8, generator=3, callback=lambda step, loss: step == 4, **options)
    rest = third.fit(steps=8, generator=9, resume=third.training_state(), **options)
    assert rest.history == one.history[2:]
    assert_all_close(list(third.parameters()), list(first.parameters()), 0)
    assert make_deep().fit(steps=8, generator=4, **options).history != one.history


def test_what_is_fixed_stays() -> None:
    model = make_deep()
    model.fix("layers.0.inducing", "noise_var")
    kept = model.layers[0].inducing.detach().clone(), model.noise_var.detach().clone()
    other = model.layers[1].inducing.detach().clone()
    seen: list[int] = []
    model.fit(epochs=1, batch=7, every=1, generator=0, callback=lambda step, _: bool(seen.append(step)))
    assert seen == [1, 2, 3, 4, 5]
    assert torch.equal(model.layers[0].inducing, kept[0])
    assert torch.equal(model.noise_var, kept[1])
    assert not torch.equal(model.layers[1].inducing, other)
    with pytest.raises(lapgrad.OptionError, match="fit has not been called"):
        make_deep().training_state()


def test_float32() -> None:
    """The loss is that of float64 to the precision of its inputs, and learning goes the same way."""
    single, double = make_deep(60, dtype=torch.float32), make_deep(60)
    normal = torch.randn(1, 60, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    layers, prepared = double._list_layers(), [layer.prepare() for layer in double._list_layers()]
    mean, variance = layers[0](double._scale_inputs(double.X)[None], prepared[0])
    expected = layers[1](mean + variance.sqrt() * normal, prepared[1])
    layers, prepared = single._list_layers(), [layer.prepare() for layer in single._list_layers()]
    mean, variance = layers[0](single._scale_inputs(single.X)[None], prepared[0])
    found = layers[1](mean + variance.sqrt() * normal.float(), prepared[1])
    assert_all_close(found, [part.float() for part in expected], HIGHER_ORDER)
    X, y = make_data(200, 2, dtype=torch.float32)
    model = DeepGPRegression(X, y, inducing=60, generator=0)  # K_uu is singular in float32
    before = model.loss(samples=20, generator=0)
    model.fit(steps=40, generator=0)
    assert model.loss(samples=20, generator=0) < before - 20
    assert model.predict(X).mean.dtype is torch.float32


@pytest.mark.parametrize(("whiten", "covariance"), FORMS)
def test_files(tmp_path: Path, whiten: bool, covariance: Any) -> None:
    X, Y = make_data(30, 3, 2)
    kernels = [RBF(torch.tensor([0.5, 0.9, 1.0])) + RBF(2.0), Matern52(1.5)]
    model = DeepGPRegression(X, Y, kernels, widths=(2,), inducing=6, whiten=whiten, covariance=covariance)
    model.fix("layers.0.inducing")
    model.fit(steps=3)
    model.save(tmp_path / "model.pt")
    loaded = DeepGPRegression.load(tmp_path / "model.pt")
    assert loaded.config() == model.config()
    assert torch.equal(loaded.loss(generator=4), model.loss(generator=4))
    assert_all_close(tuple(loaded.predict(X)), tuple(model.predict(X)), 0)
    assert torch.equal(loaded.log_prob(X, Y), model.log_prob(X, Y))
    assert torch.equal(loaded.sample(X, 2, generator=0), model.sample(X, 2, generator=0))
    assert not loaded.get_parameter("layers.0.raw_inducing").requires_grad
    assert loaded.get_parameter("layers.1.raw_inducing").requires_grad


def test_normalise_changes_units_alone() -> None:
    X, Y = make_data(50, 2, k=2)
    X, Y = X * torch.tensor([100.0, 1e-3]) + 7.0, 30.0 * Y - 4.0
    shift, scale = Y.mean(0), Y.var(0, correction=0).mean().sqrt()
    scaled = (X - X.mean(0)) / X.std(0, correction=0)
    plain = DeepGPRegression(
        scaled, (Y - shift) / scale, RBF(0.8), inducing=scaled[:5], noise_var=0.1, normalise=False
    )
    model = DeepGPRegression(X, Y, RBF(0.8), inducing=X[:5], noise_var=0.1)
    assert_close(model.loss(generator=0), plain.loss(generator=0) + Y.numel() * scale.log(), HIGHER_ORDER)
    mean, variance = plain.predict(scaled[:7], noise=True)
    found = model.predict(X[:7], noise=True)
    assert_all_close(tuple(found), (mean * scale + shift, variance * scale**2), HIGHER_ORDER)
    assert_close(
        model.log_prob(X[:7], Y[:7]),
        plain.log_prob(scaled[:7], (Y[:7] - shift) / scale) - scale.log(),
        HIGHER_ORDER,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_odd_data(dtype: torch.dtype) -> None:
    """One row, targets and columns that do not vary, rows that are there twice, more widths than rows."""
    one = DeepGPRegression(torch.ones(1, 3, dtype=dtype), torch.ones(1, dtype=dtype), widths=(2,))
    one.fit(steps=2)
    assert one.predict(torch.ones(1, 3, dtype=dtype)).mean.item() == pytest.approx(1.0, abs=0.1)
    X = torch.stack([torch.arange(6.0), torch.ones(6)], 1).repeat(2, 1).to(dtype)
    for widths in ((2,), (1,), (20,)):
        twice = DeepGPRegression(X, torch.full((12,), 7.0, dtype=dtype), widths=widths, inducing=X)
        twice.fit(steps=2)
        assert (twice.predict(X).mean - 7.0).abs().max() < 0.1
        assert twice.predict(X + 1.0).variance.isfinite().all()


def test_covariances_for_each_column() -> None:
    """Draws whose columns have covariances of their own, one of them singular."""
    roots = torch.tensor([[[1.0, 0.0], [0.5, 0.2]], [[0.3, 0.0], [0.3, 0.0]]], dtype=DOUBLE)
    covariance = roots @ roots.mT
    mean = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=DOUBLE)
    draws = _sampling.draw_normal(mean, covariance, 20_000, torch.Generator().manual_seed(0))
    assert draws.shape == (20_000, 2, 2)
    for column in range(2):
        found = draws[..., column]
        assert (found.mean(0) - mean[:, column]).abs().max() < 0.05
        assert (found.T.cov() - covariance[column]).abs().max() < 0.05


def test_joint_covariances_have_the_variances_on_their_diagonal() -> None:
    for covariance in ("shared", "separate"):
        layer = make_deep(covariance=covariance)._list_layers()[0]
        H = torch.linspace(-1, 1, 8, dtype=DOUBLE).view(4, 2)
        mean, variance = layer(H)
        joint = layer.predict_jointly(H)
        assert_close(joint[0], mean)
        diagonal = joint[1].diagonal(dim1=-2, dim2=-1)
        assert_close(diagonal.mT if diagonal.dim() == 2 else diagonal[:, None], variance)
        assert_close(joint[1], joint[1].mT, 0)


def test_plot() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = make_deep(d=1).plot()
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"mean", "data"}
    matplotlib.pyplot.close("all")
    with pytest.raises(lapgrad.ShapeError, match="one input"):
        make_deep().plot()


X6, Y6 = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6.0).double()


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (lapgrad.NonFiniteError, r"DeepGPRegression: X .* in rows 0, 1", {"X": X6 * math.nan}),
        (lapgrad.NonFiniteError, r"DeepGPRegression: y .* in rows 0, 1", {"y": Y6 / 0.0}),
        (lapgrad.ShapeError, "with n = 6 like X", {"y": Y6[:5]}),
        (lapgrad.ShapeError, "X has no rows", {"X": X6[:0], "y": Y6[:0]}),
        (lapgrad.DTypeError, "same dtype", {"y": Y6.float()}),
        (lapgrad.OptionError, "init must be one of", {"init": "grid"}),
        (lapgrad.OptionError, "mean must be one of", {"mean": "constant"}),
        (lapgrad.OptionError, "covariance must be one of", {"covariance": "diagonal"}),
        (lapgrad.OptionError, "start must be one of", {"start": "zero"}),
        (lapgrad.OptionError, r"widths\[1\] must be a positive number, got 0", {"widths": (2, 0)}),
        (lapgrad.OptionError, "wants layers of 2 outputs", {"mean": "identity", "widths": (3,)}),
        (lapgrad.OptionError, "inducing must be", {"inducing": 0}),
        (lapgrad.OptionError, "jitter must not be negative", {"jitter": -1.0}),
        (lapgrad.OptionError, "noise_var must be", {"noise_var": -1.0}),
        (lapgrad.ShapeError, "noise_var must be a scalar", {"noise_var": torch.ones(2)}),
        (lapgrad.OptionError, "kernel must be a Kernel", {"kernel": "rbf"}),
        (lapgrad.OptionError, "there are 2 layers, got 3 kernels", {"kernel": [RBF(), RBF(), RBF()]}),
        (lapgrad.ShapeError, "3 lengthscales for points of 2", {"kernel": RBF(torch.ones(3))}),
        (lapgrad.ShapeError, "inducing must have 2 columns", {"inducing": X6[:, :1]}),
    ],
)
def test_mistakes_are_named(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        DeepGPRegression(**{"X": X6, "y": Y6, **options})


def test_mistakes_of_calls_are_named() -> None:
    model = DeepGPRegression(X6, Y6)
    with pytest.raises(lapgrad.OptionError, match=r"fit: batch must be a positive number"):
        model.fit(batch=0)
    with pytest.raises(lapgrad.OptionError, match="lr must be positive"):
        model.fit(lr=0.0)
    with pytest.raises(lapgrad.OptionError, match=r"loss: samples must be a positive number"):
        model.loss(samples=0)
    with pytest.raises(lapgrad.OptionError, match=r"predict: samples must be a positive number"):
        model.predict(X6, samples=0)
    with pytest.raises(lapgrad.OptionError, match=r"predict: chunk must be a positive number"):
        model.predict(X6, chunk=0)
    with pytest.raises(lapgrad.OptionError, match=r"loss: batch must be a positive number"):
        model.loss(batch=-1)
    with pytest.raises(lapgrad.OptionError, match="generator must be"):
        model.fit(generator="seed")  # type: ignore[arg-type]
    with pytest.raises(lapgrad.ShapeError, match="must have 2 columns"):
        model.predict(X6[:, :1])
    with pytest.raises(lapgrad.NonFiniteError, match=r"X_new .* in row 1"):
        model.predict(torch.tensor([[0.0, 1.0], [math.nan, 0.0]], dtype=DOUBLE))
    with pytest.raises(lapgrad.ShapeError, match="must have 1 outputs"):
        model.log_prob(X6, Y6[:, None].expand(6, 2))


def test_a_parameter_that_is_not_finite_ends_a_fit() -> None:
    model = DeepGPRegression(X6, Y6)
    with torch.no_grad():
        model.layers[0].kernel.raw_variance.fill_(math.nan)
    with pytest.raises(lapgrad.FitError, match="step 1"):
        model.fit(steps=2)
