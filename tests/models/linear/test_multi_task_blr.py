"""Several tasks on shared features: the sum of single regressions, and what tasks learn from each other."""

from __future__ import annotations

import pytest
import tolerances
import torch
from torch import Tensor, nn

from lapgrad import DTypeError, OptionError, ShapeError
from lapgrad.models import BayesianLinearRegression, MultiTaskBLR, PolynomialFeatures, RandomFourierFeatures

SIZES = (7, 0, 1, 12, 8, 3)


def make_tasks(sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(n, 2, dtype=torch.float64, generator=generator),
            torch.randn(n, dtype=torch.float64, generator=generator),
        )
        for n in sizes
    ]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())


def bottleneck() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 2))


def make_single(model: MultiTaskBLR, task: int) -> BayesianLinearRegression:
    """Return the regression of one task, with its variances."""
    alone = BayesianLinearRegression(
        *model.data(task), model.features, bias=model.bias, method=model.method, normalise=False
    )
    for name in ("noise_var", "prior_var", *(["bias_var"] if model.bias else [])):
        setattr(alone, name, getattr(model, name)[task])
    return alone


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", ["lq", "cholesky"])
@pytest.mark.parametrize("features", [PolynomialFeatures(2), network()], ids=["polynomial", "network"])
def test_loss_and_gradient_are_sums_over_tasks(features, method, bias):
    model = MultiTaskBLR(make_tasks(), features, method=method, bias=bias)
    model.noise_var = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    with_data = [t for t, n in enumerate(SIZES) if n]
    expected = torch.stack([make_single(model, t).loss() for t in with_data]).sum()
    tolerances.assert_close(model.loss(), expected)
    learned = list(features.parameters())
    if learned:
        ours, theirs = (torch.autograd.grad(loss, learned) for loss in (model.loss(), expected))
        tolerances.assert_all_close(ours, theirs)


def test_predictions_of_a_task_are_those_of_its_regression():
    model = MultiTaskBLR(make_tasks(), PolynomialFeatures(2))
    X_new, y_new = make_tasks((5,))[0]
    for task in (0, 2, 3, -1):
        alone = make_single(model, task)
        for options in ({}, {"noise": True}, {"full_cov": True}):
            tolerances.assert_all_close(
                tuple(model.predict(task, X_new, **options)), tuple(alone.predict(X_new, **options))
            )
        for joint in (False, True):
            found = model.log_prob(task, X_new, y_new, joint=joint)
            tolerances.assert_close(found, alone.log_prob(X_new, y_new, joint=joint))
        tolerances.assert_close(
            model.sample(task, X_new, 3, generator=1), alone.sample(X_new, 3, generator=1)
        )


def test_a_task_without_data_answers_with_its_prior():
    model = MultiTaskBLR(make_tasks(), PolynomialFeatures(2))
    X_new = make_tasks((5,))[0][0]
    with torch.no_grad():
        mean, variance = model.predict(1, X_new)
        prior = (model.design(X_new).square() * model.weight_var()[1]).sum(1)
    assert torch.equal(mean, torch.zeros_like(mean))
    tolerances.assert_close(variance, prior)


def test_observations_go_to_their_task():
    whole = make_tasks()
    part = [(X[:2], y[:2]) if t == 3 else (X, y) for t, (X, y) in enumerate(whole)]
    model = MultiTaskBLR(part, PolynomialFeatures(1))
    model.observe(3, whole[3][0][2:], whole[3][1][2:])
    for t, (X, y) in enumerate(whole):
        found = model.data(t)
        assert torch.equal(found[0], X)
        assert torch.equal(found[1], y)
    assert model.sizes == list(SIZES)


def make_wave(x: Tensor, task: int) -> Tensor:
    """A family: amplitude, offset and phase differ, the frequency does not."""
    return (1.0 + 0.3 * task) * torch.sin(7.0 * x + 0.8 * task) + 0.2 * task


def test_a_task_with_few_observations_learns_from_the_others():
    """Two features and a bias suffice for the family, but five observations do not, to learn them."""
    generator = torch.Generator().manual_seed(3)
    data = []
    for task, n in enumerate((20, 18, 25, 20, 30, 22, 5)):
        x = torch.rand(n, 1, dtype=torch.float64, generator=generator)
        noise = torch.randn(n, dtype=torch.float64, generator=generator)
        data.append((x, make_wave(x[:, 0], task) + 0.02 * noise))
    x = torch.linspace(0.0, 1.0, 100, dtype=torch.float64)[:, None]

    def error_of_last(model: MultiTaskBLR) -> float:
        with torch.no_grad():
            return float((model.predict(-1, x).mean - make_wave(x[:, 0], 6)).square().mean().sqrt())

    together, alone = MultiTaskBLR(data, bottleneck()), MultiTaskBLR(data[-1:], bottleneck())
    for model in (together, alone):
        model.fit(steps=150)
    assert error_of_last(together) < min(0.4, 0.5 * error_of_last(alone))


@pytest.mark.parametrize("features", ["fourier", "network"])
def test_files(features, tmp_path):
    make = {"fourier": lambda: RandomFourierFeatures(2, 4, generator=0), "network": network}[features]
    model = MultiTaskBLR(make_tasks(), make())
    model.fit(steps=5)
    model.save(tmp_path / "model.pt")
    modules = {"features": network()} if features == "network" else None
    loaded = MultiTaskBLR.load(tmp_path / "model.pt", modules=modules)
    X_new = make_tasks((5,))[0][0]
    assert torch.equal(loaded.loss(), model.loss())
    assert torch.equal(loaded.predict(3, X_new).mean, model.predict(3, X_new).mean)
    assert loaded.sizes == model.sizes


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ([], OptionError, "at least one observation"),
        (make_tasks((0, 0)), OptionError, "at least one observation"),
        ([(torch.ones(2, 1), torch.ones(2)), (torch.ones(2, 2), torch.ones(2))], ShapeError, r"got \[1, 2\]"),
        (
            [(torch.ones(2, 1), torch.ones(2)), (torch.ones(2, 1).double(), torch.ones(2).double())],
            DTypeError,
            "1",
        ),
        ([(torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(3))], ShapeError, "task 1: y must have"),
    ],
)
def test_mistakes_are_named(data, kind, message):
    with pytest.raises(kind, match=f"MultiTaskBLR.*{message}"):
        MultiTaskBLR(data)


def test_a_task_that_is_not_there():
    with pytest.raises(OptionError, match="there are 6 tasks, no task 6"):
        MultiTaskBLR(make_tasks()).predict(6, torch.ones(1, 2, dtype=torch.float64))
