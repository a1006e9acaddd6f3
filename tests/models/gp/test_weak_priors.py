"""The weak prior of lengthscales: where a fit has one, and what it is good for."""

from __future__ import annotations

import math

import pytest
import torch
from device import DEVICE
from tolerances import assert_close
from torch import Tensor, nn
from torch.distributions import LogNormal

import lapgrad
from lapgrad.models import GPRegression
from lapgrad.models._gp.batched_loss import BatchedLoss
from lapgrad.models._gp.objective import find_weak_priors
from lapgrad.models._gp.starts import draw_starts
from lapgrad.models._training.fitting import get_scales
from lapgrad.models.kernels import RBF, Deep, Kernel, Linear, Matern52, Periodic

F64 = torch.float64


def data(n: int = 40, d: int = 3) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=source, dtype=F64)
    y = torch.sin(6.0 * X[:, 0]) + 0.3 * torch.randn(n, generator=source, dtype=F64)
    return X.to(DEVICE), y.to(DEVICE)


def test_the_objective_is_the_loss_and_a_prior_of_logarithms() -> None:
    X, y = data()
    model = GPRegression(X, y, Matern52([0.5, 2.0, 8.0]), normalise=False)
    model.set_criterion("regularised", X, y[:, None])
    typical = math.sqrt(3.0) * X.std(0, correction=0)
    deviations = (torch.tensor([0.5, 2.0, 8.0]).to(X) / typical).log()
    L = torch.linalg.cholesky(0.7**2 * torch.eye(3).to(X) + 1.0)
    of_lengthscales = 0.5 * torch.linalg.solve_triangular(L, deviations[:, None], upper=False).square().sum()
    of_noise = 0.5 * ((model.noise_var / (0.05 * y.var(correction=0))).log() / 3.0).square()
    assert_close(model.compute_objective() - model.loss(), of_lengthscales + of_noise)
    model.fix("noise_var")
    model.set_criterion("regularised", X, y[:, None])
    assert_close(model.compute_objective() - model.loss(), of_lengthscales)
    model.set_criterion("likelihood", X, y[:, None])
    assert_close(model.compute_objective(), model.loss())


def model_scales(model: GPRegression) -> Tensor:
    return get_scales(model, [p for p in model.parameters() if p.requires_grad])


def test_many_starts_have_it_too() -> None:
    model = GPRegression(*data(), Matern52(ard=True))
    model.set_criterion("regularised", (model.X - model.x_shift) / model.x_scale, model.y)
    starts = draw_starts(model, 4, torch.Generator().manual_seed(0))
    values, gradients = BatchedLoss(model)(starts / model_scales(model))
    single = model.compute_objective()
    assert abs(values[0].item() - single.item()) < 1e-8 * abs(single.item())
    found = torch.autograd.grad(single, [p for p in model.parameters() if p.requires_grad])
    difference = gradients[0] - torch.cat([g.flatten() for g in found]).cpu() * model_scales(model)
    assert difference.abs().max() < 1e-8


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: RBF(ard=True), 1),
        (lambda: RBF(), 0),
        (lambda: RBF(ard=True, active_dims=[1]), 0),
        (lambda: RBF(ard=True, active_dims=[0, 2]) + Matern52(ard=True) * Linear(), 2),
        (lambda: RBF(ard=True) ** 2 + Periodic(), 1),
        (lambda: Deep(RBF(ard=True), nn.Linear(3, 2).double()), 0),
    ],
)
def test_only_several_lengthscales_of_inputs_have_one(make: type[Kernel], count: int) -> None:
    X, y = data()
    model = GPRegression(X, y, make(), normalise=False)
    found = find_weak_priors(model.kernel, X)
    assert len(found) == count
    for prior in found:
        assert prior.centre.shape == prior.kernel.lengthscale.shape


def test_priors_of_users_and_fixed_lengthscales_stay_alone() -> None:
    X, y = data()
    model = GPRegression(X, y)
    model.set_prior("kernel.lengthscale", LogNormal(0.0, 1.0))
    assert not find_weak_priors(model.kernel, X)
    model.set_prior("kernel.lengthscale", None)
    assert find_weak_priors(model.kernel, X)
    model.fix("kernel.lengthscale")
    assert not find_weak_priors(model.kernel, X)


def test_lengthscales_that_do_not_matter_stay_near_the_data() -> None:
    X, y = data(d=6)
    regular, plain = GPRegression(X, y, Matern52(ard=True)), GPRegression(X, y, Matern52(ard=True))
    result = regular.fit()
    plain.fit(criterion="likelihood")
    assert result.converged
    assert abs(result.loss - regular.compute_objective().item()) < 1e-6
    assert plain.loss() < regular.loss()
    assert plain.kernel.lengthscale.max() > 30.0 > regular.kernel.lengthscale.max()
    X_new, y_new = data(400, d=6)
    better, worse = (model.log_prob(X_new[40:], y_new[40:]).mean() for model in (regular, plain))
    assert better > worse


def test_a_few_equal_rows_do_not_end_in_no_noise() -> None:
    X, y = data(60)
    X[-1], y[-1] = X[0], y[0]
    regular, plain = (GPRegression(X, y, Matern52(ard=True), noise_var=1e-4) for _ in range(2))
    plain.fit(criterion="likelihood", starts=1)
    regular.fit(starts=1)
    assert plain.noise_var.item() < 1e-5
    assert regular.noise_var.item() > 0.01


def test_constant_columns_do_no_harm() -> None:
    X, y = data()
    X[:, 1] = 288.0
    model = GPRegression(X, y)
    assert model.fit().converged
    # Nothing but the prior moves it: to what the others have in common.
    inputs = (X - model.x_shift) / model.x_scale
    typical = torch.where(inputs.std(0, correction=0) > 0, math.sqrt(3.0) * inputs.std(0, correction=0), 1.0)
    deviations = (model.kernel.lengthscale.detach() / typical).log()
    assert abs(deviations[1].item() - deviations.sum().item() / (0.7**2 + 3.0)) < 1e-3


def test_an_unknown_criterion_is_named() -> None:
    with pytest.raises(lapgrad.OptionError, match="regularised"):
        GPRegression(*data()).fit(criterion="evidence")
