"""Checks of models other than sparse Gaussian processes on several ranks; run by ``test_on_ranks.py``."""

from __future__ import annotations

import tempfile

import torch
from ranks import catch
from tolerances import OVER_RANKS, assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.distributed import Checkpoint, Group, shard
from lapgrad.distributed.losses import sum_loss
from lapgrad.models import (
    DeepGP,
    DeepGPRegression,
    FitResult,
    LinearGaussianSSM,
    MultiTaskBLR,
    PolynomialFeatures,
)
from lapgrad.models.components import LocalLevel, Seasonal

DOUBLE = torch.float64


def assert_same_parameters(one: nn.Module, two: nn.Module) -> None:
    for (name, first), second in zip(one.named_parameters(), two.parameters(), strict=True):
        assert first.shape == second.shape, name
        assert_close(second.detach(), first.detach(), OVER_RANKS)


def assert_same_history(one: FitResult, two: FitResult) -> None:
    first, second = (torch.tensor(result.history, dtype=DOUBLE) for result in (one, two))
    assert_close(second, first, OVER_RANKS)


def check_sum_of_losses(group: Group) -> None:
    """All ranks get the gradient of the sum of losses once, not once for each rank."""
    x = torch.tensor([1.0, 2.0], dtype=DOUBLE, requires_grad=True)
    unused = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    loss = sum_loss(group, lambda: (group.rank + 1.0) * x.square().sum(), [x, unused])
    factor = group.size * (group.size + 1) / 2
    assert_close(loss.detach(), torch.tensor(5.0 * factor, dtype=DOUBLE))
    gradients = torch.autograd.grad(3.0 * loss, [x, unused])
    assert_close(gradients[0], 6.0 * factor * x.detach())
    assert not gradients[1].any()
    with torch.no_grad():
        assert_close(sum_loss(group, lambda: x.sum(), [x]), 3.0 * group.size * torch.ones((), dtype=DOUBLE))


def check_ranks_that_do_not_do_the_same(group: Group) -> None:
    """Sums of different numbers of values raise an error; gloo alone would end one of the processes."""
    error = catch(lambda: group.sum_numbers([1.0] * (1 + group.rank)))
    assert isinstance(error, lapgrad.ProcessGroupError)
    assert "have 1 to 2" in str(error)
    x = torch.ones(2, dtype=DOUBLE, requires_grad=group.is_first)
    assert isinstance(catch(lambda: sum_loss(group, lambda: x.sum(), [x])), lapgrad.ProcessGroupError)
    assert group.sum_numbers([1.0]) == [group.size]


def check_tasks(group: Group) -> None:
    tasks = []
    for count in (9, 4, 17, 6, 12):
        x = torch.rand(count, dtype=DOUBLE)
        tasks.append((x, torch.sin(3.0 * x) + 0.1 * torch.randn(count, dtype=DOUBLE)))
    own = range(5)[:2] if group.is_first else range(5)[2:]
    networks = [nn.Sequential(nn.Linear(1, 4), nn.Tanh()).double() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    one = MultiTaskBLR(tasks, networks[0])
    two = MultiTaskBLR([tasks[t] for t in own], networks[1], group=group)
    assert_same_parameters(one, two)
    assert_close(two.loss().detach(), one.loss().detach(), OVER_RANKS)
    results = [model.fit("lbfgs", steps=12) for model in (one, two)]
    assert results[0].steps == results[1].steps
    assert_same_parameters(one, two)
    points = torch.linspace(0.0, 1.0, 4, dtype=DOUBLE)
    for task in range(5):
        if task in own:
            assert_close(two.predict(task, points).mean, one.predict(task, points).mean, OVER_RANKS)
        else:
            assert isinstance(catch(lambda task=task: two.predict(task, points)), lapgrad.OptionError)
    assert isinstance(catch(lambda: two.save("model")), lapgrad.OptionError)
    bad = [(points, points[:2])] if group.rank == 1 else [(points, points)]
    error = catch(lambda: MultiTaskBLR(bad, PolynomialFeatures(2), group=group))
    assert isinstance(error, lapgrad.ShapeError)
    assert "rank 1" in str(error)


def make_series(count: int, length: int) -> list[Tensor]:
    level = torch.randn(count, length, dtype=DOUBLE).mul(0.3).cumsum(1)
    season = torch.sin(torch.arange(length, dtype=DOUBLE) * (2.0 * torch.pi / 4.0))
    return list((level + season + 0.5 * torch.randn(count, length, dtype=DOUBLE)).unbind())


def check_series(group: Group) -> None:
    series = [*make_series(3, 20), *make_series(2, 26)]
    series[1][4] = torch.nan
    own = series[:2] if group.is_first else series[2:]
    for optimizer in ("lbfgs", "adam"):
        one = LinearGaussianSSM(series, LocalLevel() + Seasonal(4))
        two = LinearGaussianSSM(own, LocalLevel() + Seasonal(4), group=group)
        assert_same_parameters(one, two)
        assert_close(two.loss().detach(), one.loss().detach(), OVER_RANKS)
        results = [model.fit(optimizer, steps=10) for model in (one, two)]
        assert results[0].steps == results[1].steps
        assert_same_parameters(one, two)
        begin = 0 if group.is_first else 2
        expected = one.forecast(2).mean[begin : begin + len(own)]
        assert_close(two.forecast(2).mean, expected, OVER_RANKS)

    def stop(step: int, loss: float) -> bool:
        return group.rank == 1 and step >= 3

    assert two.fit("lbfgs", steps=20, callback=stop).reason == "the callback asked to stop"
    given = [torch.zeros(2, 2, 2, 2)] if group.rank == 1 else own
    error = catch(lambda: LinearGaussianSSM(given, LocalLevel(), group=group))
    assert isinstance(error, lapgrad.LapgradError)
    assert "rank 1" in str(error)


def make_circle(count: int) -> Tensor:
    angles = 6.3 * torch.rand(count, dtype=DOUBLE)
    return torch.stack([angles.cos(), angles.sin(), 0.2 * torch.randn(count, dtype=DOUBLE)], 1)


def check_deep_gp(group: Group) -> None:
    """Two ranks with minibatches of 20 rows are one process with minibatches of 40."""
    Y = make_circle(150)
    own = Y[:60] if group.is_first else Y[60:]
    for natural in (None, 0.0):
        one = DeepGP(Y, [1, 2], inducing=8, hidden=[6], generator=0)
        two = DeepGP(own, [1, 2], inducing=8, hidden=[6], generator=0, group=group)
        assert_same_parameters(one, two)
        common = {"steps": 12, "every": 4, "natural": natural, "generator": 1, "annealing": 5}
        expected = one.fit(Y, batch=20 * group.size, **common)
        found = two.fit(own, batch=20, **common)
        assert_same_history(expected, found)
        assert_same_parameters(one, two)
    assert two.sample(2, generator=0).shape == (2, 3)


def check_deep_gp_regression(group: Group) -> None:
    X = torch.randn(120, 2, dtype=DOUBLE)
    y = torch.sin(X.sum(1)) + 0.1 * torch.randn(120, dtype=DOUBLE)
    rows = shard(X, y, group=group)
    one = DeepGPRegression(X, y, inducing=8, generator=0)
    two = DeepGPRegression(*rows, inducing=8, generator=0, group=group)
    assert_same_parameters(one, two)
    for batch in (None, 30):
        losses = [model.loss(samples=2, batch=batch, generator=3).detach() for model in (one, two)]
        assert_close(losses[1], losses[0], OVER_RANKS)
    expected = one.fit(steps=10, batch=15 * group.size, every=5, generator=2)
    found = two.fit(steps=10, batch=15, every=5, generator=2)
    assert_same_history(expected, found)
    assert_same_parameters(one, two)
    assert_close(two.predict(X[:4]).mean, one.predict(X[:4]).mean, OVER_RANKS)
    assert two.extra_repr() == one.extra_repr()
    own = slice(None) if group.is_first else slice(0, 0)
    error = catch(lambda: DeepGPRegression(X[own], y[own], inducing=8, generator=0, group=group))
    assert isinstance(error, lapgrad.ShapeError)


def check_failures_in_minibatches(group: Group) -> None:
    Y = make_circle(60)
    own = shard(Y, group=group)
    model = DeepGP(own, [1], inducing=5, hidden=[3], generator=0, group=group)

    def fail(step: int, loss: float) -> None:
        if group.rank == 1:
            raise KeyError("in a callback")

    error = catch(lambda: model.fit(own, steps=4, batch=10, every=2, generator=0, callback=fail))
    assert isinstance(error, KeyError if group.rank == 1 else lapgrad.ProcessGroupError)
    bad = own.clone()
    if group.rank == 1:
        bad[2] = torch.nan
    error = catch(lambda: model.fit(bad, steps=4, batch=10, generator=0))
    assert isinstance(error, lapgrad.NonFiniteError)
    assert "rank 1" in str(error)


def check_checkpoints(group: Group) -> None:
    """A minibatch fit that is resumed ends where one that was never interrupted does."""
    Y = make_circle(60)
    own = shard(Y, group=group)
    folder = group.share_object(tempfile.mkdtemp() if group.is_first else "")
    models = [DeepGP(own, [1], inducing=5, hidden=[3], generator=0, group=group) for _ in range(2)]
    common = {"batch": 10, "every": 2, "generator": 0, "final_lr": 1.0}
    models[0].fit(own, steps=8, **common)
    checkpoint = Checkpoint(f"{folder}/fit.pt", models[1], every=1)
    assert checkpoint.load() is None
    models[1].fit(own, steps=4, callback=checkpoint, **common)
    later = DeepGP(own, [1], inducing=5, hidden=[3], generator=5, group=group)
    checkpoint = Checkpoint(f"{folder}/fit.pt", later)
    later.fit(own, steps=8, resume=checkpoint.load(), **common)
    assert_same_parameters(models[0], later)
    other = DeepGP(own, [2], inducing=5, hidden=[3], generator=0, group=group)
    error = catch(lambda: Checkpoint(f"{folder}/fit.pt", other).load())
    assert isinstance(error, lapgrad.FileFormatError)
