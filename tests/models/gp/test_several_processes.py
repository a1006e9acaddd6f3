"""BatchGPRegression against single models, and MultiOutputGPRegression against one model of all numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.models import BatchGPRegression, GPRegression, Model, MultiOutputGPRegression
from lapgrad.models.kernels import RBF, Coregionalisation, Deep, Matern52, White

F64 = torch.float64


def batch(b: int = 3, n: int = 15) -> tuple[Tensor, Tensor]:
    X = torch.rand(b, n, 2, dtype=F64)
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=F64)[:b, None]
    return X.to(DEVICE), (
        scale * (torch.sin(5.0 * X[..., 0]) + 0.1 * torch.randn(b, n, dtype=F64)) + scale
    ).to(DEVICE)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("mean", ["constant", "zero"])
def test_a_batch_is_its_models(mean: str, normalise: bool) -> None:
    X, y = batch()
    together = BatchGPRegression(X, y, Matern52(ard=True) + White(), mean=mean, normalise=normalise)
    apart = [
        GPRegression(X[i], y[i], Matern52(ard=True) + White(), mean=mean, normalise=normalise)
        for i in range(3)
    ]
    together.noise_var = torch.stack([model.noise_var.detach() for model in apart])[:, None]
    assert_close(together.losses(), torch.stack([model.loss() for model in apart]))
    new = torch.rand(4, 2, dtype=F64, device=DEVICE)
    for noise in (False, True):
        mean_new, variance = together.predict(new, noise=noise)
        covariance = together.predict(new.expand(3, 4, 2), noise=noise, full_cov=True).covariance
        for i, model in enumerate(apart):
            one = model.predict(new, noise=noise)
            assert_close(mean_new[i], one.mean, HIGHER_ORDER)
            assert_close(variance[i], one.variance, HIGHER_ORDER)
            assert_close(covariance[i].diagonal(), one.variance, HIGHER_ORDER)
    densities = together.log_prob(new, torch.zeros(3, 4, dtype=F64, device=DEVICE))
    assert_close(densities[1], apart[1].log_prob(new, torch.zeros(4, dtype=F64, device=DEVICE)), HIGHER_ORDER)
    assert together.sample(new, 5, noise=True, generator=0).shape == (5, 3, 4)


def test_a_batch_learns_what_its_models_learn(tmp_path: Path) -> None:
    X, y = batch()
    together = BatchGPRegression(X, y, RBF())
    result = together.fit()
    expected = sum(GPRegression(X[i], y[i], RBF()).fit(starts=1).loss for i in range(3))
    assert result.converged
    assert abs(result.loss - expected) < 5e-3
    assert_close(together.loss().detach().cpu(), torch.tensor(result.loss, dtype=F64))
    together.save(tmp_path / "model")
    new = torch.rand(3, 4, 2, dtype=F64, device=DEVICE)
    assert torch.equal(Model.load(tmp_path / "model").predict(new).mean, together.predict(new).mean)


def test_what_is_fixed_stays_in_a_batch() -> None:
    model = BatchGPRegression(*batch(), RBF(0.7))
    model.fix("kernel.lengthscale")
    model.fit(steps=8)
    assert_close(model.kernel.lengthscale.detach(), torch.full((3, 1, 1), 0.7, dtype=F64, device=DEVICE))


def test_mistakes_of_batches_are_named() -> None:
    X, y = batch()
    with pytest.raises(
        lapgrad.ShapeError, match=r"X must have shape \(b, n, d\) or \(n, d\), and y \(b, n\)"
    ):
        BatchGPRegression(X, y[:2])
    with pytest.raises(lapgrad.OptionError, match="cannot be a batch"):
        BatchGPRegression(X, y, Deep(RBF(), nn.Linear(2, 2, dtype=F64, device=DEVICE)))
    with pytest.raises(lapgrad.ShapeError, match=r"X_new must have shape \(3, m, 2\) or \(m, 2\)"):
        BatchGPRegression(X, y).predict(X[..., :1])


def outputs(n: int = 12) -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.0, 5.0, n, dtype=F64)
    y = torch.stack([torch.sin(x), 2.0 * torch.sin(x) + 1.0, torch.cos(x)], 1) + 0.05 * torch.randn(
        n, 3, dtype=F64
    )
    y[4:, 1] = torch.nan
    return x.to(DEVICE), y.to(DEVICE)


def test_outputs_are_one_process_over_inputs_and_outputs() -> None:
    """The same model by a product of kernels, over points that are (input, number of the output)."""
    x, y = outputs()
    model = MultiOutputGPRegression(x, y, RBF(0.8), rank=2, normalise=False)
    model.noise_var, model.constant = [0.1, 0.1, 0.1], [0.3, 0.3, 0.3]
    rows, columns = (~y.isnan()).nonzero().unbind(1)
    over_outputs = Coregionalisation(
        3, 2, model.coregionalisation.mixing, model.coregionalisation.own_var, active_dims=[1]
    )
    points = torch.stack([x[rows], columns.to(x)], 1)
    plain = GPRegression(
        points,
        y[rows, columns],
        RBF(0.8, 1.0, active_dims=[0]) * over_outputs,
        noise_var=0.1,
        normalise=False,
    )
    plain.constant = 0.3
    assert_close(model.loss(), plain.loss())
    new = torch.tensor([0.3, 4.2], dtype=F64, device=DEVICE)
    mean, variance = model.predict(new, noise=True)
    for output in range(3):
        there = torch.stack([new, torch.full_like(new, output)], 1)
        expected = plain.predict(there, noise=True)
        assert_close(mean[:, output], expected.mean, HIGHER_ORDER)
        assert_close(variance[:, output], expected.variance, HIGHER_ORDER)
    drawn = model.sample(new, 20000, noise=True, generator=0)
    assert ((drawn.mean(0) - mean) / variance.sqrt()).abs().max() < 0.04
    assert (drawn.var(0) / variance - 1.0).abs().max() < 0.06


def test_outputs_learn_from_each_other(tmp_path: Path) -> None:
    x, y = outputs(20)
    model = MultiOutputGPRegression(x, y)
    before = model.loss().item()
    assert model.fit(steps=60).loss < before
    late = torch.tensor([4.5], dtype=F64, device=DEVICE)
    mean, variance = model.predict(late)
    assert abs(mean[0, 1].item() - (2.0 * torch.sin(late).item() + 1.0)) < 0.3
    assert variance[0, 1] < 0.1
    covariance = model.output_covariance()
    assert covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt() > 0.9
    assert model.log_prob(x, y).isnan().equal(y.isnan())
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert_close(again.predict(late).mean, mean)
    assert "missing=16" in model.summary()


def test_mistakes_of_outputs_are_named() -> None:
    x, y = outputs()
    with pytest.raises(lapgrad.ShapeError, match=r"y must have shape \(12, k\), got \(12,\)"):
        MultiOutputGPRegression(x, y[:, 0])
    with pytest.raises(lapgrad.OptionError, match="an output has no observation"):
        MultiOutputGPRegression(x, torch.full_like(y, torch.nan))
    with pytest.raises(lapgrad.OptionError, match="numbers of outputs must be 0 to 1, got 0 to 2"):
        Coregionalisation(2)(torch.arange(3.0))
    with pytest.raises(lapgrad.ShapeError, match=r"mixing must have shape \(2, 1\)"):
        Coregionalisation(2, mixing=[1.0, 2.0])
